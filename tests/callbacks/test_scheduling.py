from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prototrain.callbacks import CallbackFactory, EnableCallbackIf, PeriodicCallback, RunOp, SaveOnExit, Summaries
from prototrain.errors import CallbackError
from tests.callbacks.helpers import StepRecorder
from tests.tiny import CountingTrainer, Recorder


def test_functions_become_hooks() -> None:
    calls: list[tuple[str, int]] = []

    def note(hook: str) -> Any:
        return lambda self: calls.append((hook, self.trainer.global_step))

    hooks = {hook: note(hook) for hook in ("setup", "before_train", "trigger", "after_train")}
    CountingTrainer().train([CallbackFactory(**hooks).every(steps=4)], max_steps=6)
    assert calls == [("setup", 0), ("before_train", 0), ("trigger", 4), ("trigger", 6), ("after_train", 6)]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [0, 5, 10]),
        ({"run_before": False}, [5, 10]),
        ({"run_as_trigger": False}, [0]),
        ({"run_before": False, "run_as_trigger": False, "run_step": True}, list(range(10))),
    ],
)
def test_run_op(options: dict[str, bool], steps: list[int]) -> None:
    trainer, seen = CountingTrainer(), []
    trainer.train([RunOp(lambda: seen.append(trainer.global_step), **options)], steps_per_epoch=5, max_steps=10)
    assert seen == steps


def test_callbacks_that_change_the_training_do_not_run_at_an_early_end() -> None:
    seen: list[int] = []
    trainer = CountingTrainer()
    note = CallbackFactory(trigger=lambda me: seen.append(me.trainer.global_step), at_end=False)
    operation = RunOp(lambda: seen.append(-trainer.global_step), run_before=False)
    trainer.train([note.every(steps=4), operation.every(steps=4)], max_steps=6)
    assert seen == [4, -4]


@pytest.mark.parametrize(
    ("intervals", "steps", "epochs"),
    [
        ({"every_k_steps": 5}, [5, 10, 15, 20], [20]),
        ({"every_k_epochs": 2}, [5, 6, 7, 8, 13, 14, 15, 16], [8, 16]),
        ({"every_k_steps": 7, "every_k_epochs": 4}, [7, 13, 14, 15, 16], [16]),
    ],
)
def test_periodic_callback(intervals: dict[str, int], steps: list[int], epochs: list[int]) -> None:
    recorder = StepRecorder()
    CountingTrainer().train([PeriodicCallback(recorder, **intervals)], steps_per_epoch=4, max_steps=20)
    assert recorder.steps("trigger_step") == steps
    assert recorder.steps("trigger_epoch") == epochs
    assert recorder.steps("setup") == [0] and recorder.steps("after_train") == [20]


def test_periodic_callback_asks_for_matching_steps_only() -> None:
    def next_steps(callback: PeriodicCallback, *after: int, length: int) -> list[Any]:
        callback.trainer = SimpleNamespace(steps_per_epoch=length, total_steps=10**18)  # type: ignore[assignment]
        return [callback.next_step(step) for step in after]

    inner = StepRecorder()
    assert next_steps(PeriodicCallback(inner, every_k_steps=6), 0, 5, 6, length=4) == [6, 6, 12]
    assert next_steps(PeriodicCallback(inner, every_k_epochs=3), 0, 8, 9, 12, length=4) == [9, 9, 10, 21]
    assert next_steps(PeriodicCallback(inner, every_k_epochs=10**6), 7, length=10**6) == [(10**6 - 1) * 10**6 + 1]


def test_enable_callback_if() -> None:
    recorder, periodic = StepRecorder(), Recorder()
    CountingTrainer().train(
        [
            EnableCallbackIf(recorder, lambda trainer: trainer.global_step % 3 == 0),
            EnableCallbackIf(periodic, lambda trainer: trainer.global_step > 4).every(steps=2),
        ],
        steps_per_epoch=5,
        max_steps=10,
    )
    assert recorder.steps("trigger_step") == [3, 6, 9]
    assert recorder.steps("trigger_epoch") == []
    assert periodic.steps("trigger") == [6, 8, 10]
    assert EnableCallbackIf(Recorder(), lambda trainer: True).next_step(3) is None  # takes no extra steps
    with pytest.raises(CallbackError, match="EnableCallbackIf: RunOp runs in every step"):
        EnableCallbackIf(RunOp(print, run_step=True), lambda trainer: True)
    with pytest.raises(CallbackError, match="PeriodicCallback: Summaries runs in every step"):
        PeriodicCallback(Summaries(), every_k_steps=2)
    with pytest.raises(CallbackError, match="SaveOnExit has no hook"):
        EnableCallbackIf(SaveOnExit(), lambda trainer: True)
