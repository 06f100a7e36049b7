from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest

from prototrain import Callback, SimpleTrainer
from prototrain.callbacks import (
    EarlyStopping,
    HyperParam,
    HyperParamSetterWithFunc,
    JSONWriter,
    MaxSaver,
    MinSaver,
    ModelSaver,
    Priority,
    SaveOnExit,
    Summaries,
    Validation,
)
from prototrain.errors import CallbackError
from prototrain.launch import default_callbacks
from tests.callbacks.helpers import Fails, measures
from tests.tiny import CountingTrainer, Recorder, tiny_model


class Named(Callback):
    """Appends a letter to a shared list when it is triggered, and counts its calls."""

    def __init__(self, letter: str, order: list[str], priority: int = Priority.DECIDE) -> None:
        self.letter, self.order, self.priority = letter, order, priority
        self.state_key = letter
        self.count = 0

    def trigger(self) -> None:
        self.order.append(self.letter)
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_order_by_priority_then_list() -> None:
    order: list[str] = []
    callbacks = [
        Named("d", order, Priority.SAVE),
        Named("b", order),
        Named("a", order, Priority.EVALUATE).every(steps=1),
        Named("c", order),
        Named("e", order, Priority.SAVE),
    ]
    CountingTrainer().train(callbacks, max_steps=1)
    assert "".join(order) == "abcde"


def test_duplicate_state_keys_and_past_next_steps_are_errors() -> None:
    class Confused(Callback):
        due: Any = 3

        def next_step(self, step: int) -> int | None:
            return self.due

    for second in (Named("a", []), Named("a", []).every(steps=1)):
        with pytest.raises(CallbackError, match="state_key"):
            CountingTrainer().train([Named("a", []), second], max_steps=1)
    for Confused.due in (3, 4.5, "4"):
        with pytest.raises(CallbackError, match=rf"Confused.next_step\(.\) returned {Confused.due!r}"):
            CountingTrainer().train([Confused()], max_steps=5)


EVERY = pytest.mark.parametrize("every", [{"steps": 2}, {"epochs": 1}, {}])


def timed(callbacks: list[Any], every: dict[str, int]) -> list[Callback]:
    return [callback.every(**every) if every else callback for callback in callbacks]


class Interrupts(Callback):
    """Asks the run to stop at one step, once, like a signal that arrives while callbacks run."""

    def __init__(self, step: int, *, once: list[bool], priority: int = Priority.DECIDE) -> None:
        self.step, self.once, self.priority = step, once, priority

    def trigger(self) -> None:
        if self.trainer.global_step == self.step and self.once:
            self.once.pop()
            self.trainer.stop.request(signal.SIGINT)


@EVERY
@pytest.mark.parametrize("where", [Priority.EVALUATE - 1, Priority.DECIDE, Priority.SAVE + 1])
def test_stop_between_callbacks_runs_each_once(every: dict[str, int], where: int, tmp_path: Path) -> None:
    order: list[str] = []
    once = [True]

    def callbacks() -> list[Callback]:
        named = [Named("a", order, Priority.EVALUATE), Named("b", order), Named("c", order, Priority.WRITE)]
        interrupts = Interrupts(4, once=once, priority=where)
        return [*timed([*named, interrupts], every), ModelSaver().every(steps=2), SaveOnExit()]

    with pytest.raises(KeyboardInterrupt):
        CountingTrainer(experiment=tmp_path).train(callbacks(), steps_per_epoch=4, max_epoch=2)
    again = callbacks()
    CountingTrainer(experiment=tmp_path).train(again, steps_per_epoch=4, max_epoch=2)
    times = 4 if every == {"steps": 2} else 2
    assert "".join(order) == "abc" * times
    assert [(callback.callback if every else callback).count for callback in again[:3]] == [times] * 3  # type: ignore[attr-defined]


class StopsInside(Named):
    """Is interrupted by a signal once, like a long validation."""

    once = True

    def trigger(self) -> None:
        super().trigger()
        if self.trainer.global_step == 4 and StopsInside.once:
            StopsInside.once = False
            self.count -= 1
            self.trainer.stop.request(signal.SIGINT)
            self.trainer.stop.check()


class Saves(Named):
    """Saves before later callbacks of the step have run."""

    def trigger(self) -> None:
        super().trigger()
        self.trainer.save()


@EVERY
@pytest.mark.parametrize("kind", [StopsInside, Saves])
def test_resume_amid_callbacks_runs_each_once(kind: type[Named], every: dict[str, int], tmp_path: Path) -> None:
    def train(steps: int) -> list[int]:
        named = [Named("a", []), kind("b", []), Named("c", [], Priority.WRITE), Named("d", [], Priority.SAVE)]
        saver = SaveOnExit() if kind is StopsInside else ModelSaver().every(steps=2)
        trainer = CountingTrainer(experiment=tmp_path)
        trainer.train([*timed(named, every), saver], steps_per_epoch=4, max_steps=steps)
        return [callback.count for callback in named]

    StopsInside.once = True
    with suppress(KeyboardInterrupt):
        train(4)
    assert train(8)[:3] == [4 if every == {"steps": 2} else 2] * 3


def test_callback_that_stops_at_the_end_of_an_epoch_leaves_a_last_checkpoint(tmp_path: Path) -> None:
    stopping = EarlyStopping("loss", mode="max", patience=1).every(epochs=1)
    callbacks = [measures("loss", lambda step: -step), stopping, JSONWriter(), Summaries().every(steps=7)]
    trainer = CountingTrainer(experiment=tmp_path)
    trainer.train([*callbacks, ModelSaver().every(steps=500)], steps_per_epoch=5, max_epoch=9)
    assert trainer.global_step == 10 and trainer.run.checkpoints.steps() == [10]
    assert [step for step, _ in trainer.monitors.history("trn/loss")] == [7, 10]


def test_resume_from_the_first_of_two_best_savers(tmp_path: Path) -> None:
    found = []
    for experiment, parts in ((tmp_path / "one", (8,)), (tmp_path / "two", (4, 8))):
        for steps in parts:
            callbacks = [MinSaver("error").every(steps=2), MaxSaver("gain").every(steps=2)]
            stopping = EarlyStopping("error", mode="min", patience=9, restore_best=True)
            measured = [measures("error", lambda step: abs(step - 4.0)), measures("gain", lambda step: min(step, 4.0))]
            trainer = SimpleTrainer(tiny_model(), experiment=experiment)
            trainer.train([*measured, *callbacks, stopping.every(steps=2)], max_steps=steps)
        found.append([one.state_dict() for one in (*callbacks, stopping)])
    assert found[0] == found[1]


class Misspelt(Callback):
    def on_step_end(self) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "must (be|return) a list"),
        ([Callback], "not a callback: <class"),
        ([keras.callbacks.Callback()], "wrap it in KerasCallback"),
        ([Misspelt()], r"Misspelt\(\) overrides no hook"),
    ],
    ids=["none", "class", "keras", "misspelt"],
)
def test_wrong_lists_of_callbacks(given: Any, message: str) -> None:
    with pytest.raises(CallbackError, match=message):
        CountingTrainer().train(given, max_steps=1)
    with pytest.raises(CallbackError, match=message):
        default_callbacks(with_callbacks(lambda: given))


def with_callbacks(callbacks: Any) -> Any:
    return SimpleNamespace(**vars(tiny_model()), callbacks=callbacks)


def test_callbacks_of_a_model() -> None:
    one = SaveOnExit()
    assert len(default_callbacks(tiny_model())) == len(default_callbacks(with_callbacks(None)))
    assert default_callbacks(with_callbacks(lambda: iter([one])))[-1] is one
    with pytest.raises(CallbackError, match="must be a function that returns a list, not list"):
        default_callbacks(with_callbacks([one]))


def test_callbacks_with_state_are_of_one_trainer(experiment: Path) -> None:
    summaries = Summaries()
    validation = Validation(evaluate=lambda dataset, batches: {"loss": 1.0})  # without state
    callbacks = [summaries.every(steps=2), validation.every(steps=2), JSONWriter(), ModelSaver().every(steps=3)]
    CountingTrainer(experiment=experiment).train(callbacks, max_steps=3)
    with pytest.raises(CallbackError, match="has the state of another trainer's run; make a new one"):
        CountingTrainer().train([summaries.every(steps=2)], max_steps=3)
    trainer = CountingTrainer(experiment=experiment)
    trainer.train(callbacks, max_steps=6)
    assert [step for step, _ in trainer.monitors.history("trn/loss")] == [2, 3, 4, 6]
    CountingTrainer(experiment=experiment.with_name("second")).train(callbacks[1:], max_steps=3)
    assert experiment.with_name("second").joinpath("metrics.jsonl").exists()


def test_decision_is_made_once_if_a_later_callback_fails(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    def train(holder: Any, *others: Callback) -> CountingTrainer:
        halve = HyperParamSetterWithFunc(HyperParam(holder, "rate"), lambda epoch, rate: rate / 2)
        stopping = EarlyStopping("vld/loss", mode="min", patience=3)
        trainer = CountingTrainer(experiment=tmp_path)
        timed = [one.every(steps=2) for one in (stopping, halve, Recorder(calls))]
        trainer.train([measures("vld/loss", lambda step: 1.0), *timed, *others, SaveOnExit()], max_steps=20)
        return trainer

    with pytest.raises(RuntimeError, match="on purpose"):
        train(SimpleNamespace(rate=1.0), Fails(4))
    holder = SimpleNamespace(rate=1.0)
    trainer = train(holder)
    # The best value is measured at step 2; there is no improvement at 4, 6 and 8.
    assert trainer.global_step == 8 and holder.rate == 1 / 32  # halved at step 0 as well
    assert trainer.monitors.history("vld/loss") == [(step, 1.0) for step in range(1, 9)]
    assert [step for hook, step in calls if hook == "trigger"] == [2, 4, 6, 8]
