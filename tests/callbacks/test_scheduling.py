"""Callbacks made of functions, and conditional callbacks."""

from __future__ import annotations

from typing import Any

import pytest

from prototrain import Callback
from prototrain.callbacks import CallbackFactory, EnableCallbackIf, RunOp
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
    callback = CallbackFactory(trigger=lambda self: None)
    names = [name for name in vars(Callback) if callable(getattr(Callback, name)) and not name.startswith("_")]
    assert sorted(name for name in names if callback.overrides(name)) == ["overrides", "trigger", "trigger_epoch"]


# -- RunOp -------------------------------------------------------------------------------------------------------------

IN_STEPS = {"run_before": False, "run_as_trigger": False, "run_step": True}


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [0, 5, 10]),
        ({"run_before": False}, [5, 10]),
        ({"run_as_trigger": False}, [0]),
        (IN_STEPS, list(range(10))),
    ],
)
def test_run_op(options: dict[str, bool], steps: list[int]) -> None:
    trainer, seen = CountingTrainer(), []
    trainer.train([RunOp(lambda: seen.append(trainer.global_step), **options)], steps_per_epoch=5, max_steps=10)
    assert seen == steps


class InRun(Callback):
    def after_run(self, outputs: dict[str, Any]) -> None:
        pass


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
    with pytest.raises(CallbackError, match="InRun is traced into the step"):
        EnableCallbackIf(InRun(), lambda trainer: True)
