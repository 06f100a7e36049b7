"""A callback out of plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prototrain.callbacks.base import Callback

Hook = Callable[["CallbackFactory"], Any]


class CallbackFactory(Callback):
    """Makes a callback of functions, each of which gets the callback, and by it ``.trainer``.

        CallbackFactory(trigger=lambda self: print(self.trainer.global_step)).every(steps=100)

    Args:
        setup: see `Callback.setup`.
        before_train: see `Callback.before_train`.
        trigger: see `Callback.trigger`.
        after_train: see `Callback.after_train`.
        priority: when it runs among those of the same hook, see `Priority`.
    """

    def __init__(
        self,
        *,
        setup: Hook | None = None,
        before_train: Hook | None = None,
        trigger: Hook | None = None,
        after_train: Hook | None = None,
        priority: int = Callback.priority,
    ) -> None:
        self._hooks = {"setup": setup, "before_train": before_train, "trigger": trigger, "after_train": after_train}
        self.priority = priority

    def overrides(self, hook: str) -> bool:
        if hook == "trigger_epoch":
            hook = "trigger"  # what it does after an epoch is its trigger
        return self._hooks[hook] is not None if hook in self._hooks else super().overrides(hook)

    def setup(self) -> None:
        self._call("setup")

    def before_train(self) -> None:
        self._call("before_train")

    def trigger(self) -> None:
        self._call("trigger")

    def after_train(self) -> None:
        self._call("after_train")

    def _call(self, hook: str) -> None:
        function = self._hooks[hook]
        if function is not None:
            function(self)
