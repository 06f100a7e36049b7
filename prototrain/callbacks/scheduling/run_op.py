"""Running a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prototrain.callbacks.base import Callback


class RunOp(Callback):
    """Runs a function before training, whenever it is triggered, or along with every step.

    Args:
        function: called without arguments.
        run_before: call it before the first step of training (not of a resumed run).
        run_as_trigger: call it in `trigger`, by default after each epoch.
        run_step: add it to every iteration; it is then traced into the compiled step and may use TensorFlow ops only.
    """

    chief_only = False

    def __init__(
        self,
        function: Callable[[], Any],
        *,
        run_before: bool = True,
        run_as_trigger: bool = True,
        run_step: bool = False,
    ) -> None:
        self.function = function
        self._run_before = run_before
        self._run_as_trigger = run_as_trigger
        self._run_step = run_step

    def overrides(self, hook: str) -> bool:
        if hook == "after_run":
            return self._run_step
        if hook in ("trigger", "trigger_epoch"):
            return self._run_as_trigger
        return super().overrides(hook)

    def before_train(self) -> None:
        if self._run_before and self.trainer.global_step == 0:
            self.function()

    def after_run(self, outputs: dict[str, Any]) -> None:
        if self._run_step:
            self.function()

    def trigger(self) -> None:
        if self._run_as_trigger:
            self.function()
