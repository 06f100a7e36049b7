"""What may change between a stop and a resume: each row of the table in docs/resuming.md."""

from __future__ import annotations

import functools
import importlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain import Callback, SimpleTrainer, Trainer
from prototrain.callbacks import (
    CallbackFactory,
    HyperParam,
    InferenceRunner,
    KerasCallback,
    KerasMetric,
    ProxyCallback,
    SaveOnExit,
    ScalarPrinter,
    ScheduledHyperParamSetter,
    StatMonitorParamSetter,
    StopOnNaN,
    Validation,
)
from prototrain.errors import CheckpointError
from tests.conftest import ROOT
from tests.tiny import tiny_arrays, tiny_build, tiny_model, tiny_trainer, values

STOP, END = 7, 12


def datasets(*, examples: int = 40, buffer: int = 40, factor: float = 1.0, batch: int = 8) -> Callable[[], Any]:
    def make() -> dict[str, tf.data.Dataset]:
        trn = tf.data.Dataset.from_tensor_slices(tiny_arrays(examples)).shuffle(buffer)
        return {"trn": trn.map(lambda example: {**example, "x": example["x"] * factor}).batch(batch)}

    return make


def with_layer(*, units: int = 6, name: str = "fc0") -> Callable[[Any, bool], Any]:
    def build(inputs: Any, train_phase: bool) -> Any:
        hidden = keras.layers.Dense(units, activation="relu", name=name)(inputs["x"])
        logits = keras.layers.Dense(2, name="logits")(hidden)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=logits)
        return {"loss": tf.reduce_mean(losses)}

    return build


class Counts(Callback):
    """Has a state of its own."""

    def __init__(self, key: str = "Counts") -> None:
        self.state_key = key
        self.count = 0

    def trigger_step(self) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


BASE: dict[str, Any] = {"datasets": datasets(), "build": with_layer()}

# What changes -> "exact", or the words that say that the resume is not exact, or the words of the refusal.
EXACT = {
    "nothing": {},
    "the number of steps": {"model__num_steps": 500},
    "intervals and where the run prints": {"trainer__print_interval": 7, "trainer__max_checkpoints_to_keep": 2},
    "keys of actions": {"actions__export__outputs": ["logits"]},
}
INEXACT = {
    "a config key": ({"model__lr_schedule__constant__value": 0.02}, "config model.lr_schedule.constant.value was 0.01"),
    "a key of the model's own": ({"model__mine": 3}, "config model.mine was not set and is 3"),
    "weight decay": ({"model__weight_decay__value": 0.1}, "config model.weight_decay.value was not set and is 0.1"),
    "a transformation": ({"datasets": datasets(factor=2.0)}, "its first batch is another one"),
}
REFUSED = {
    "the batch size": (
        {"datasets": datasets(batch=4)},
        r"training data has changed: .*Batch\(8, .*--allow-changed-data",
    ),
    "the dataset's length": (
        {"datasets": datasets(examples=48)},
        "batches per pass was 5 and is 6.*--allow-changed-data",
    ),
    "the shuffle buffer": (
        {"datasets": datasets(buffer=20)},
        r"Shuffle\(40, .* has become Shuffle\(20.*--allow-changed",
    ),
    "the random seed": ({"trainer__random_seed": 5}, "seed was 1337 and is 5.*--allow-changed-data"),
    "a layer's size": ({"build": with_layer(units=7)}, "fc0/kernel is .*4, ?6.* there and .*4, ?7.* here.*--fresh"),
    "a layer's name": ({"build": with_layer(name="fc9")}, "fc0/bias is no longer in the model.*--fresh"),
    "the optimizer": ({"model__optimizer__method": "rmsprop"}, "optimizer/.* is n.*--fresh"),
    "the architecture": ({"build": tiny_build}, "bn0/beta is new in the model.*--fresh"),
}


def train(directory: Path, steps: int, *callbacks: Callback, **change: Any) -> SimpleTrainer:
    trainer = SimpleTrainer(tiny_model(**{**BASE, **change}), experiment=directory)
    trainer.train([*callbacks, SaveOnExit()], max_steps=steps, steps_per_epoch=5)
    return trainer


@pytest.fixture(scope="module")
def straight() -> dict[str, bytes]:
    trainer = SimpleTrainer(tiny_model(**BASE))
    trainer.train(max_steps=END, steps_per_epoch=5)
    return values(trainer)


@pytest.fixture(scope="module")
def once_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stopped") / "tiny"
    train(directory, STOP)
    return directory


@pytest.fixture
def stopped(once_stopped: Path, tmp_path: Path) -> Path:
    """A run that was stopped, which a test may go on with."""
    return Path(shutil.copytree(once_stopped, tmp_path / "tiny"))


def test_accepted_and_exact(stopped: Path, straight: dict[str, bytes]) -> None:
    trainer = train(stopped, END, **{key: value for change in EXACT.values() for key, value in change.items()})
    assert trainer.storage.resume_line() == f"resumed at step {STOP}, exact"
    assert values(trainer) == straight


def test_accepted_and_said_to_be_inexact(stopped: Path) -> None:
    changes = {key: value for change, _ in INEXACT.values() for key, value in change.items()}
    line = train(stopped, END, **changes).storage.resume_line()
    assert line.startswith(f"resumed at step {STOP}, not bit-exact, because")
    assert [words for _, words in INEXACT.values() if words not in line] == []


def test_refused_and_nothing_is_lost(stopped: Path, straight: dict[str, bytes]) -> None:
    for name, (change, words) in REFUSED.items():
        with pytest.raises(CheckpointError, match=words) as caught:
            train(stopped, END, **change)
        assert "\n" not in str(caught.value), name
    trainer = train(stopped, END)
    assert trainer.storage.resume_line() == f"resumed at step {STOP}, exact"
    assert values(trainer) == straight


def test_changed_data_can_be_allowed(stopped: Path) -> None:
    trainer = SimpleTrainer(tiny_model(**{**BASE, "datasets": datasets(batch=4, buffer=20)}), experiment=stopped)
    trainer.train([SaveOnExit()], max_steps=END, steps_per_epoch=5, allow_changed_data=True)
    assert trainer.global_step == END and not trainer.data.allow_changes
    assert "not bit-exact, because the training data has changed" in trainer.storage.resume_line()


def test_another_environment_is_said_to_be_inexact(stopped: Path) -> None:
    changed = {
        "tensorflow": "2.99",
        "processor": "another",
        "processors": 64,
        "intra-op threads": 3,
        "python": "3.99",
        "numpy": "9.9",
    }

    class Elsewhere(SimpleTrainer):
        def provenance(self) -> dict[str, Any]:
            return {**super().provenance(), "trainer": "SimpleTrainer", **changed}

    trainer = Elsewhere(tiny_model(**BASE), experiment=stopped)
    trainer.train([SaveOnExit()], max_steps=END, steps_per_epoch=5)
    line = trainer.storage.resume_line()
    for key, value in changed.items():
        assert re.search(rf"not bit-exact, because .*{key} was .* and is {value}", line), line


def test_edited_code_is_said_to_be_inexact(tmp_path: Path) -> None:
    """Also if it was edited while it ran: that is not the code of the run."""
    source = tmp_path / "model.py"
    source.write_text("# one way\n")
    model = tiny_model(**BASE)
    model.source = source

    class Edits(Callback):
        def trigger_step(self) -> None:
            source.write_text("way = 2\n")

    trainer = SimpleTrainer(model, experiment=tmp_path / "run")
    trainer.train([SaveOnExit(), Edits()], max_steps=STOP, steps_per_epoch=5)
    trainer = SimpleTrainer(model, experiment=tmp_path / "run")
    trainer.train([SaveOnExit()], max_steps=END, steps_per_epoch=5)
    assert "model code is another one" in trainer.storage.resume_line()


def test_callbacks_that_are_new_or_gone_are_named(tmp_path: Path) -> None:
    train(tmp_path, STOP, Counts("kept"), Counts("gone"))
    kept, new = Counts("kept"), Counts("new")
    line = train(tmp_path, END, kept, new).storage.resume_line()
    assert "new starts without a saved state" in line and "the saved state of gone is not used" in line
    assert (kept.count, new.count) == (END, END - STOP)


class Sets(Callback):
    """May change what is trained, as far as anybody knows."""

    def __init__(self, rate: Any = 0.5) -> None:
        self.rate = rate

    def trigger(self) -> None:
        pass


class SetsOtherwise(Sets):
    """What the other class is edited to."""

    name = "Sets"

    def trigger(self) -> None:
        self.rate *= 2


class SaysSo(Sets):
    changes_training = True


class Flag(Callback):
    """Has no attributes of its own."""

    changes_training = True

    def trigger(self) -> None:
        pass


class Rated(Callback):
    """Nobody says whether it changes what is trained."""

    def __init__(self, rate: float = 0.5) -> None:
        self._scale, self.began = 2 * rate, time.perf_counter()

    def trigger(self, power: int = 2) -> None:
        self.trainer.scale = self._scale * SCALE**power  # type: ignore[attr-defined]


class Named(Sets):
    """Has attributes that are called as prototrain's own are."""

    def __init__(self, function: Callable[[float], float], priority: int = 200) -> None:
        self.callback, self.priority = function, priority


class Follows(Sets):
    """Goes by what others measure."""

    def trigger(self) -> None:
        self.trainer.scale = self.trainer.monitors.latest("vld/loss")  # type: ignore[attr-defined]


class LooksOn(Sets):
    changes_training = False


class LooksOnOtherwise(SetsOtherwise):
    changes_training = False
    name = "LooksOn"


class Passes(ProxyCallback):
    """Changes when another callback runs."""

    def __init__(self, callback: Callback, first: int) -> None:
        super().__init__(callback)
        self.first = first


SCALE = 3.0


def scaled(trainer: Any, value: float = 0.5) -> None:
    trainer.scale = value


def setter(value: float, now: float = 0.0) -> Callback:
    return ScheduledHyperParamSetter(HyperParam(SimpleNamespace(x=now), "x"), [(1, value)])


def of_keras(factor: float, form: int = 0) -> Callback:
    functions = (lambda epoch, logs: factor), (lambda epoch, logs: 2 * factor)
    return KerasCallback(keras.callbacks.LambdaCallback(on_epoch_end=functions[form]))


def csv_logger(path: str) -> Callback:
    return KerasCallback(keras.callbacks.CSVLogger(path))


# Callbacks of the first part of a run and of the second -> the words for what is not the same; nothing if it is exact.
LISTS: dict[str, tuple[list[Callback], list[Callback], str]] = {
    "a setter's argument": (
        [setter(0.5)],
        [setter(0.25)],
        "the callback ScheduledHyperParamSetter: points was [[1, 0.5]] and is [[1, 0.25]]",
    ),
    "code": ([Sets()], [SetsOtherwise()], "the callback Sets: class was Sets and is SetsOtherwise"),
    "an argument": ([SaysSo(0.5)], [SaysSo(0.25)], "the callback SaysSo: rate was 0.5 and is 0.25"),
    "an interval": (
        [SaysSo().every(steps=2)],
        [SaysSo().every(steps=3)],
        "the callback SaysSo: its interval was steps=2 and is steps=3",
    ),
    "one that is new": ([], [SaysSo()], "the callback SaysSo is new"),
    "one that is gone": ([SaysSo()], [], "the callback SaysSo is gone"),
    "a flag is new": ([], [Flag()], "the callback Flag is new"),
    "a flag is gone": ([Flag()], [], "the callback Flag is gone"),
    "a flag's interval": ([Flag()], [Flag().every(epochs=2)], "the callback Flag: its interval was not set and is"),
    "the value that is set": ([setter(0.5)], [setter(0.5, now=0.1)], ""),
    "nothing": ([SaysSo(), setter(0.5), of_keras(1)], [SaysSo(), setter(0.5), of_keras(1)], ""),
    "an argument of one that does not say": (
        [Rated(0.5)],
        [Rated(0.25)],
        "the callback Rated: scale was 1.0 and is 0.5 (changes_training = False in its class says that it changes "
        "nothing that is trained)",
    ),
    "an interval of one that does not say": (
        [Rated().every(steps=2)],
        [Rated().every(steps=1)],
        "the callback Rated: its interval was steps=2 and is steps=1",
    ),
    "one that does not say is new": ([], [Rated(), ScalarPrinter().every(steps=2)], "the callback Rated is new"),
    "one that does not say is gone": ([Rated()], [], "the callback Rated is gone"),
    "a proxy's argument": (
        [Passes(ScalarPrinter(), 1).every(steps=2)],
        [Passes(ScalarPrinter(), 2).every(steps=2)],
        "the callback ScalarPrinter: its interval was ['steps=2', {'first': 1",
    ),
    "a function that is given": ([of_keras(0.5)], [of_keras(0.25, 1)], "the callback LambdaCallback: on_epoch_end was"),
    "an argument that a function is given": (
        [CallbackFactory(trigger=functools.partial(scaled, value=0.5))],
        [CallbackFactory(trigger=functools.partial(scaled, value=0.25))],
        "the callback CallbackFactory: hooks was ",
    ),
    "an order": ([SaysSo(), Flag()], [Flag(), SaysSo()], "the callbacks SaysSo, Flag run in another order"),
    "a priority": ([Named(abs, 150)], [Named(abs, 250)], "the callback Named: priority was 150 and is 250"),
    "a function that one's own has": (
        [Named(lambda x: x)],
        [Named(lambda x: x + 1)],
        "the callback Named: callback was ",
    ),
    "the end of a name": ([Sets("/kernel")], [Sets("/bias")], "the callback Sets: rate was /kernel and is /bias"),
    "a place": ([Sets(f"{tempfile.gettempdir()}/a")], [Sets(f"{tempfile.gettempdir()}/b")], ""),
    "one inside of one's own": (
        [Sets(setter(0.5))],
        [Sets(setter(0.25))],
        "the callback Sets: rate was ",
    ),
    "one of Keras inside of one's own": (
        [Sets(keras.callbacks.ReduceLROnPlateau(factor=0.5))],
        [Sets(keras.callbacks.ReduceLROnPlateau(factor=0.1))],
        "the callback Sets: rate was ",
    ),
    "code of one that says that it looks on": ([LooksOn()], [LooksOnOtherwise()], ""),
    "when the run ends": ([StopOnNaN()], [StopOnNaN(ignore="x")], ""),
    "where Keras logs to": ([csv_logger("one.csv")], [csv_logger("other.csv")], ""),
}


LOWERS = StatMonitorParamSetter("learning_rate", "vld/loss", lambda rate: rate / 2, mode="min", last_k=3)
# Callbacks of both parts of a run with a model, of the first and of the second -> the words.
WITH_MODEL: dict[str, tuple[list[Callback], list[Callback], list[Callback], str]] = {
    "how often something measures": ([], [Validation().every(steps=2)], [Validation().every(steps=4)], ""),
    "how often something measures that one's own goes by": (
        [Follows().every(steps=4)],
        [Validation().every(steps=2)],
        [Validation().every(steps=4)],
        "the callback Validation: its interval was steps=2 and is steps=4",
    ),
    "how much is measured that a setter goes by": (
        [LOWERS.every(steps=4)],
        [Validation().every(steps=4)],
        [Validation(batches=1).every(steps=4)],
        "the callback Validation: batches was 0 and is 1",
    ),
    "how often something measures that Keras's own go by": (
        [of_keras(1)],
        [Validation().every(steps=2)],
        [Validation().every(steps=4)],
        "the callback Validation: its interval was steps=2 and is steps=4",
    ),
    "which metric a setter goes by": (
        [LOWERS.every(steps=4), Validation().every(steps=4)],
        [InferenceRunner("vld", KerasMetric(keras.metrics.MeanSquaredError(), "y", "y")).every(steps=4)],
        [InferenceRunner("vld", KerasMetric(keras.metrics.MeanAbsoluteError(), "y", "y")).every(steps=4)],
        "the callback InferenceRunner: inferencers was ",
    ),
}


@pytest.mark.parametrize("name", WITH_MODEL)
def test_what_others_go_by_is_compared(tmp_path: Path, name: str) -> None:
    both, first, second, words = WITH_MODEL[name]
    change = {"datasets": lambda: {**datasets()(), "vld": tf.data.Dataset.from_tensor_slices(tiny_arrays(16)).batch(8)}}
    train(tmp_path, 8, *first, *both, **change)
    line = train(tmp_path, 12, *second, *both, **change).session.resume_line()
    assert line.startswith(f"resumed at step 8, {f'not bit-exact, because {words}' if words else 'exact'}"), line


def test_a_model_that_is_changed_behind_its_trainer_is_compared(tmp_path: Path) -> None:
    model = tiny_model(**BASE)

    def build(inputs: Any, train_phase: bool) -> Any:
        return {"loss": model.factor * with_layer()(inputs, train_phase)["loss"]}

    model.build = build
    for factor, steps, line in ((2.0, 2, "fresh"), (2.0, 4, "exact"), (3.0, 6, "because model graph was ")):
        model.factor = 1.0
        trainer = SimpleTrainer(model, experiment=tmp_path)
        model.factor = factor
        trainer.train([SaveOnExit()], max_steps=steps)
        assert line in trainer.session.resume_line()


class Nothing(Trainer):
    """Has no model."""

    def run_step(self) -> dict[str, float]:
        return {"x": 1.0}


@pytest.mark.parametrize("name", LISTS)
def test_callbacks_that_may_change_training_are_compared(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, words = LISTS[name]
    Nothing(experiment="run").train([*first, SaveOnExit()], steps_per_epoch=2, max_steps=4)
    resumed = Nothing(experiment="run")
    resumed.train([*second, SaveOnExit()], steps_per_epoch=2, max_steps=8)
    expected = f"not bit-exact, because {words}" if words else "exact"
    assert resumed.session.resume_line().startswith(f"resumed at step 4, {expected}")


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Make a trainer of a module of the user's own that is edited, always at the same place."""

    def made(text: str, *arguments: Any) -> Any:
        module = ModuleType("edited_trainer")
        module.__file__ = str(tmp_path / "edited_trainer.py")
        Path(module.__file__).write_text("# says nothing\n")  # what is compared here is not the text
        sys.modules["edited_trainer"] = module
        exec(compile(text, "edited_trainer.py", "exec"), vars(module))
        return module.T(*arguments, experiment=tmp_path / "run")

    yield made
    sys.modules.pop("edited_trainer", None)


TRAINER = """
import types
from prototrain import Trainer
RATE = {rate}
ARGS = types.SimpleNamespace(lr={lr}, steps={steps})
def scaled(x, by={by}): return x * by
class T(Trainer):
    LEAST = {least}
    def __init__(self, factor=1.0, **kw):
        super().__init__(**kw)
        self._scale = factor * 2
        self.state["x"] = 0.0
    def run_step(self):
        self.state["x"] += max(scaled(RATE * ARGS.lr * self._scale), self.LEAST)
"""
IN_SCRIPT = {"rate": 0.5, "lr": 0.1, "steps": 3, "by": 2, "least": 0}


@pytest.mark.parametrize(
    ("change", "factor", "words"),
    [
        ({}, 1.0, ""),
        ({"steps": 4}, 1.0, ""),
        ({"rate": 0.25}, 1.0, "the trainer's RATE was 0.5 and is 0.25"),
        ({"lr": 0.2}, 1.0, "the trainer's ARGS.lr was 0.1 and is 0.2"),
        ({"by": 3}, 1.0, "the trainer's scaled(by) was 2 and is 3"),
        ({"least": 1}, 1.0, "the trainer's T.LEAST was 0 and is 1"),
        ({}, 0.5, "the trainer's scale was 2.0 and is 1.0"),
    ],
)
def test_what_a_step_in_python_takes_from_outside_is_compared(
    script: Any, change: dict[str, float], factor: float, words: str
) -> None:
    script(TRAINER.format(**IN_SCRIPT)).train([SaveOnExit()], max_steps=2)
    resumed = script(TRAINER.format(**{**IN_SCRIPT, **change}), factor)
    resumed.train([SaveOnExit()], max_steps=3)
    assert (
        resumed.session.resume_line()
        == f"resumed at step 2, {f'not bit-exact, because {words}' * bool(words) or 'exact'}"
    )


class ImportsLate(Nothing):
    """Imports a module in its second step."""

    def run_step(self) -> dict[str, float]:
        if self.global_step == 1:
            importlib.import_module("comes_late")
        return {"x": 1.0}


def test_a_module_that_a_step_imports_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "comes_late.py"
    module.write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for text, words in (
        ("X = 1\n", "exact"),
        ("X = 2\n", "not bit-exact, because the module comes_late is not what it was"),
    ):
        directory = tmp_path / words[:3]
        ImportsLate(experiment=directory).train([SaveOnExit()], max_steps=3)
        sys.modules.pop("comes_late")
        module.write_text(text)
        resumed = ImportsLate(experiment=directory)
        resumed.train([SaveOnExit()], max_steps=4)
        assert resumed.session.resume_line() == f"resumed at step 3, {words}"


class Changing(SetsOtherwise):
    changes_training = True
    name = "Changing"

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rate = state["rate"]


def test_a_callback_is_compared_as_it_was_made(tmp_path: Path) -> None:
    """Not as a run has left it, which the next one is given."""
    changing = Changing()
    trainer = Nothing(experiment=tmp_path)
    for steps in 4, 8:
        trainer.train([changing, SaveOnExit()], steps_per_epoch=2, max_steps=steps)
    assert changing.rate != 0.5
    resumed = Nothing(experiment=tmp_path)
    resumed.train([Changing()], steps_per_epoch=2, max_steps=12)
    assert resumed.session.resume_line() == "resumed at step 8, exact"


class Anneals(Trainer):
    """Does less in each step of a run."""

    def run_step(self) -> dict[str, float]:
        return {"x": 1.0 - self.global_step / self.total_steps}


class Slows(Callback):
    """Does something by the length of a run or of an epoch."""

    def after_epoch(self) -> None:
        assert self.trainer.total_steps


class Sets(Callback):
    """Does something whose time is that of a step."""

    def trigger_step(self) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "callback", "epoch", "steps", "expected"),
    [
        (Anneals, None, 2, 8, "not bit-exact, because the trainer's total_steps was 4 and is 8"),
        (Anneals, None, 2, 4, "exact"),
        (Nothing, None, 3, 8, "exact"),
        (Nothing, Slows, 2, 8, "not bit-exact, because the callback Slows: total_steps was 4 and is 8 ("),
        (Nothing, Slows, 4, 4, "not bit-exact, because the callback Slows: steps per epoch was 2 and is 4 ("),
        (Nothing, Sets, 4, 8, "exact"),
    ],
)
def test_a_length_counts_where_code_of_the_user_s_goes_by_it(
    kind: type[Trainer], callback: type[Callback] | None, epoch: int, steps: int, expected: str, tmp_path: Path
) -> None:
    callbacks = [] if callback is None else [callback()]
    kind(experiment=tmp_path).train([*callbacks, SaveOnExit()], steps_per_epoch=2, max_steps=4)
    resumed = kind(experiment=tmp_path)
    resumed.train([*([] if callback is None else [callback()])], steps_per_epoch=epoch, max_steps=steps)
    assert resumed.session.resume_line().startswith(f"resumed at step 4, {expected}")


class Draws(Nothing):
    """Has a step that does not repeat."""

    def run_step(self) -> dict[str, float]:
        return {"x": float(tf.random.normal([]))}


def test_what_a_step_has_shown_is_said_at_the_start_of_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Draws(experiment=tmp_path).train([SaveOnExit()], max_steps=2)
    capsys.readouterr()
    Draws(experiment=tmp_path).train([SaveOnExit()], max_steps=4)
    printed = " ".join(capsys.readouterr().out.split())
    assert "start resumed at step 2, not bit-exact, because the step draws from tf.random.normal" in printed
    assert "WARNING" not in printed  # once is enough
    for steps, expected in (6, "not bit-exact, because trainer was Draws and is Nothing; the step"), (8, "exact"):
        mended = Nothing(experiment=tmp_path)
        mended.train([SaveOnExit()], max_steps=steps)
        assert mended.session.resume_line().startswith(f"resumed at step {steps - 2}, {expected}")


class MakesLate(Nothing):
    """Has a variable that the first step makes."""

    def run_step(self) -> dict[str, float]:
        self.state.setdefault("late", tf.Variable(1.0))
        return {"x": 1.0}


def test_a_variable_that_a_step_makes_is_named_while_it_can_be_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MakesLate(experiment=tmp_path).train([SaveOnExit()], max_steps=2)
    words = "'late' came into trainer.state after the run had begun: make it before train()"
    assert f"WARNING: {words}" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match=re.escape(words)):
        MakesLate(experiment=tmp_path).train([SaveOnExit()], max_steps=4)


def test_the_table_in_the_documentation_has_these_rows() -> None:
    text = (ROOT / "docs" / "resuming.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")}
    assert {*EXACT, *INEXACT, *REFUSED} - {"nothing"} <= rows


def test_the_order_in_which_variables_are_made_counts(experiment: Path) -> None:
    """As that of a set of names, which is another one in each process: sums over all of them go in it."""

    def build(names: tuple[str, ...]) -> Any:
        def made(inputs: dict[str, tf.Tensor], train_phase: bool) -> dict[str, tf.Tensor]:
            logits = {name: keras.layers.Dense(2, name=name)(inputs["x"]) for name in names}
            return {"loss": tf.reduce_mean(sum(logits[name] for name in sorted(names)) ** 2)}

        return made

    for names, steps in ((("a", "b"), 4), (("a", "b"), 6), (("b", "a"), 8)):
        trainer = tiny_trainer(experiment, build=build(names))
        trainer.train([SaveOnExit()], max_steps=steps)
        if names[0] == "a":
            assert "the order of" not in trainer.session.resume_line()
    assert "because the order of the variables that are trained is another one (if" in trainer.session.resume_line()
