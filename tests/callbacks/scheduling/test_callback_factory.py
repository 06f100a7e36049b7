from __future__ import annotations

from typing import Any

from prototrain.callbacks import CallbackFactory
from prototrain.callbacks.base import Callback
from tests.tiny import CountingTrainer


def test_functions_become_hooks() -> None:
    calls: list[tuple[str, int]] = []

    def note(hook: str) -> Any:
        return lambda self: calls.append((hook, self.trainer.global_step))

    hooks = {hook: note(hook) for hook in ("setup", "before_train", "trigger", "after_train")}
    CountingTrainer().train([CallbackFactory(**hooks).every(steps=4)], max_steps=6)
    assert calls == [("setup", 0), ("before_train", 0), ("trigger", 4), ("trigger", 6), ("after_train", 6)]


def test_what_is_left_out_is_not_called() -> None:
    callback = CallbackFactory(trigger=lambda self: None)
    hooks = [hook for hook in vars(Callback) if callable(getattr(Callback, hook)) and not hook.startswith("_")]
    assert sorted(hook for hook in hooks if callback.overrides(hook)) == ["overrides", "trigger", "trigger_epoch"]
