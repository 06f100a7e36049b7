"""What a callback of the user's own keeps where no checkpoint has it: a resume says so, where it may matter."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback, StopTraining
from prototrain.callbacks import (
    CallbackFactory,
    EnableCallbackIf,
    HyperParamSetter,
    KerasCallback,
    ProxyCallback,
    SaveOnExit,
)
from prototrain.trainers.tower import SimpleTrainer
from tests.tiny import CountingTrainer, tiny_datasets, tiny_model, tiny_trainer

pytestmark = pytest.mark.usefixtures("disk")
seen = 0
counter = tf.Variable(0)
log: list[int] = []
waiting = [1, 2]


class Adds(Callback):
    """Adds to what is trained what `number` returns."""

    def trigger_step(self) -> None:
        self.trainer.state["total"] += self.number()

    def number(self) -> int:
        return 1


class Attribute(Adds):
    def __init__(self) -> None:
        self.calls = 0

    def number(self) -> int:
        self.calls += 1
        return self.calls


class Items(Adds):
    def __init__(self) -> None:
        self.last: Any = {"steps": deque([0], 2)}

    def number(self) -> int:
        self.last["steps"].append(self.trainer.global_step)
        return int(self.last["steps"][0])


class Inside(Adds):
    def __init__(self) -> None:
        self.inner = SimpleNamespace(calls=0)

    def number(self) -> int:
        self.inner.calls += 1
        return int(self.inner.calls)


class Later(Adds):
    def number(self) -> int:
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls


class Draws(Adds):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def number(self) -> int:
        return int(self.generator.integers(9))


class Global(Adds):
    def number(self) -> int:
        global seen
        seen += 1
        return seen


class OfClass(Adds):
    calls = 0

    def number(self) -> int:
        type(self).calls += 1
        return self.calls


class Variable(Adds):
    def number(self) -> int:
        return int(counter.assign_add(1))


class ByDefault(Adds):
    """Has its first value from the class."""

    calls = 0

    def number(self) -> int:
        self.calls += 1
        return self.calls


class OfMethod(Adds):
    """Keeps it in a function that one of its methods has made."""

    def __init__(self) -> None:
        calls = 0

        def count() -> int:
            nonlocal calls
            calls += 1
            return calls

        self.count = count

    def number(self) -> int:
        return self.count()


class Generator(Adds):
    def __init__(self) -> None:
        self.generator = tf.random.Generator.from_seed(0)

    def number(self) -> int:
        return int(self.generator.uniform([], 0, 9, tf.int64))


class Tensor(Adds):
    def __init__(self) -> None:
        self.calls = tf.constant(0)

    def number(self) -> int:
        self.calls = self.calls + 1
        return int(self.calls)


class Filled(Adds):
    """Fills what an earlier hook has made, and reads it by a loop."""

    def setup(self) -> None:
        self.rows = [np.zeros(1)]

    def number(self) -> int:
        for row in self.rows:
            row += 1
        return int(self.rows[0][0])


class Queue(Adds):
    """Takes out what earlier calls have put in, of an attribute."""

    def __init__(self) -> None:
        self.queue = [1, 2]

    def number(self) -> int:
        self.queue.append(self.trainer.global_step)
        return self.queue.pop(0)


class GlobalQueue(Adds):
    def number(self) -> int:
        waiting.append(self.trainer.global_step)
        return waiting.pop(0)


class Stops(Callback):
    def __init__(self) -> None:
        self.calls = 0

    def trigger_step(self) -> None:
        self.calls += 1
        if self.calls == 100:
            raise StopTraining("enough")


class Records(Callback):
    def __init__(self) -> None:
        self.mean = 0.0

    def trigger_step(self) -> None:
        self.mean = (self.mean + self.trainer.outputs["loss"]) / 2
        self.trainer.monitors.put_scalar("mean", self.mean)


class Every(ProxyCallback):
    """Lets every second call pass."""

    def __init__(self, callback: Callback) -> None:
        super().__init__(callback)
        self.calls = 0

    def trigger_step(self) -> None:
        self.calls += 1
        if self.calls % 2:
            super().trigger_step()


def by_condition() -> Callback:
    calls = 0

    def condition(callback: Callback) -> bool:
        nonlocal calls
        calls += 1
        return calls % 2 == 0

    return EnableCallbackIf(Adds(), condition)


class Meter:
    """Is the user's own, and no part of the training."""

    def __init__(self) -> None:
        self.total = 0.0

    def add(self, value: float) -> None:
        self.total += value


class Watches(Callback):
    """Looks at the state, and keeps much of its own."""

    def __init__(self) -> None:
        self.seen: Any = None
        self.meter, self.event = Meter(), threading.Event()

    def trigger_step(self) -> None:
        self.seen = set(self.trainer.state) | {self.trainer.state["total"]}
        self.meter.add(self.trainer.outputs["loss"])
        self.event.set()
        self.logger = logging.getLogger("any")
        self.logger.level = logging.INFO


class Notes(Adds):
    """Keeps a list of what it did, and what it needs within one call."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.factor = 0

    def number(self) -> int:
        self.factor = self.trainer.global_step
        self.done.append(self.factor)
        return self.factor


class InState(Adds):
    """Has an array of the state in an attribute, too."""

    def setup(self) -> None:
        self.array = self.trainer.state.setdefault("callbacks/array", np.zeros(2))

    def number(self) -> int:
        self.array += 1
        return int(self.array[0])


class Fills(Adds):
    """Keeps what it never looks at."""

    def number(self) -> int:
        log.append(self.trainer.global_step)
        return 1


class NotCompared(Attribute):
    not_compared = ("calls",)


class OnlyLooksOn(Attribute):
    changes_training = False


class LastSeen(Callback):
    """Prints, and remembers what."""

    def trigger_step(self) -> None:
        self.last = self.trainer.outputs["loss"]
        self.all = [*getattr(self, "all", []), self.last]


class Prepares(Adds):
    """A resume begins the epoch once more for it."""

    def before_epoch(self) -> None:
        self.epoch = self.trainer.epoch_num

    def number(self) -> int:
        return self.epoch


class CountsEpochs(Prepares):
    def before_epoch(self) -> None:
        self.epoch = getattr(self, "epoch", 0)
        self.epoch += 1


class InEachEpoch(Prepares):
    def number(self) -> int:
        self.epoch += 1
        return self.epoch


class HasState(Attribute):
    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class OfKeras(keras.callbacks.Callback):
    """Its attributes are in checkpoints; globals are not."""

    not_compared = ("trainers",)

    def __init__(self, trainer: list[Any]) -> None:
        super().__init__()
        self.trainers, self.calls = trainer, 0

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.calls += 1
        self.trainers[0].state["total"] += self.calls


def _scheduler() -> keras.callbacks.Callback:
    calls = 0

    def rate(epoch: int, before: float) -> float:
        nonlocal calls
        calls += 1
        return 0.1 / calls

    return keras.callbacks.LearningRateScheduler(rate)


def test_what_the_schedule_of_a_keras_callback_keeps(tmp_path: Path) -> None:
    lines = []
    for steps in (2, 4):
        trainer = tiny_trainer(tmp_path)
        trainer.train([KerasCallback(_scheduler()), SaveOnExit()], max_steps=steps, steps_per_epoch=1)
        lines.append(trainer.session.resume_line())
    assert lines[1].endswith("LearningRateScheduler keeps calls, which no checkpoint has: give it a state_dict")


class GlobalOfKeras(OfKeras):
    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.trainers[0].state["total"] += int(counter.assign_add(1))


def by_closure() -> Callback:
    calls = 0

    def trigger(callback: Callback) -> None:
        nonlocal calls
        calls += 1
        callback.trainer.state["total"] += calls

    return CallbackFactory(trigger=trigger).every(steps=1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Attribute, "Attribute keeps calls"),
        (Items, "Items keeps last"),
        (Inside, "Inside keeps inner"),
        (Later, "Later keeps calls"),
        (Draws, "Draws keeps generator"),
        (Global, "Global keeps seen"),
        (OfClass, "OfClass keeps calls"),
        (Variable, "Variable keeps counter"),
        (by_closure, "CallbackFactory keeps calls"),
        (CountsEpochs, "CountsEpochs keeps epoch"),
        (InEachEpoch, "InEachEpoch keeps epoch"),
        (ByDefault, "ByDefault keeps calls"),
        (OfMethod, "OfMethod keeps calls"),
        (Generator, "Generator keeps generator"),
        (Tensor, "Tensor keeps calls"),
        (Filled, "Filled keeps rows"),
        (Queue, "Queue keeps queue"),
        (GlobalQueue, "GlobalQueue keeps waiting"),
        (Stops, "Stops keeps calls"),
        (Records, "Records keeps mean"),
        (lambda: Every(Adds()), "Adds keeps calls"),
        (by_condition, "Adds keeps calls"),
        (Watches, None),
        (Notes, None),
        (InState, None),
        (Prepares, None),
        (Adds, None),
        (Fills, None),
        (NotCompared, None),
        (OnlyLooksOn, None),
        (LastSeen, None),
        (HasState, None),
    ],
)
def test_what_changes_and_is_in_no_checkpoint(
    make: Callable[[], Callback], said: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(steps: int) -> str:
        trainer = CountingTrainer(experiment=tmp_path)
        trainer.train([make(), SaveOnExit()], max_steps=steps, steps_per_epoch=3)
        return trainer.session.resume_line()

    train(3)
    first = capsys.readouterr().out
    line = train(6)
    if said is None:
        assert line == "resumed at step 3, exact" and "bit-exact" not in first
        return
    reason = f"{said}, which no checkpoint has: give it a state_dict"
    assert line.startswith("resumed at step 3, not bit-exact, because ") and reason in line
    assert first.count(f"a run that goes on from this one will not be bit-exact, because {reason}") == 1


@pytest.mark.parametrize(("kind", "said"), [(OfKeras, None), (GlobalOfKeras, "keeps counter, which no checkpoint")])
def test_callbacks_of_keras(kind: type[OfKeras], said: str | None, tmp_path: Path) -> None:
    def train(steps: int) -> str:
        trainer = CountingTrainer(experiment=tmp_path)
        trainer.train([KerasCallback(kind([trainer])), SaveOnExit()], max_steps=steps, steps_per_epoch=2)
        return trainer.session.resume_line()

    train(4)
    line = train(8)
    assert said in line if said is not None else line == "resumed at step 4, exact"


class Halves(HyperParamSetter):
    """A setter of the library's, with a counter that its state does not have."""

    def __init__(self) -> None:
        super().__init__("learning_rate")
        self.calls = 0

    def new_value(self) -> float:
        self.calls += 1
        return 0.1 / self.calls


def test_a_setter_that_counts(tmp_path: Path) -> None:
    lines = []
    for steps in (2, 4):
        trainer = tiny_trainer(tmp_path)
        trainer.train([Halves().every(steps=1), SaveOnExit()], max_steps=steps)
        lines.append(trainer.session.resume_line())
    assert lines[1].endswith("Halves keeps calls, which no checkpoint has: give it a state_dict")


class HoldsAModel(Callback):
    """Is given layers, variables and what is no data, and looks more of them up later."""

    def __init__(self, model: Any) -> None:
        self.model, self.layers = model, [model.dense, model.dropout]
        self.lock, self.logger = threading.Lock(), logging.getLogger("any")

    def trigger_step(self) -> None:
        if not hasattr(self, "variables"):
            self.variables, self.optimizers = dict(self.trainer.variables), [self.trainer.optimizer]
        if self.trainer.global_step == 3:
            kernel = self.trainer.variables["dense/kernel"]
            kernel.assign(kernel * 2)


class Layers:
    """A model that makes its layers once."""

    def __init__(self) -> None:
        keras.utils.clear_session()
        self.config = tiny_model().config
        self.dense = keras.layers.Dense(2, name="dense")
        self.dropout = keras.layers.Dropout(0.5, name="dropout")

    def datasets(self) -> dict[str, tf.data.Dataset]:
        return tiny_datasets()

    def build(self, inputs: Any, train_phase: bool) -> dict[str, Any]:
        logits = self.dropout(self.dense(inputs["x"]), training=train_phase)
        return {"loss": tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(inputs["y"], logits))}


def test_models_layers_and_variables_are_in_checkpoints(tmp_path: Path) -> None:
    lines = []
    for steps in (2, 4):
        model = Layers()
        trainer = SimpleTrainer(model, experiment=tmp_path)
        trainer.train([HoldsAModel(model), SaveOnExit()], max_steps=steps)
        lines.append(trainer.session.resume_line())
    assert lines[1] == "resumed at step 2, exact"
