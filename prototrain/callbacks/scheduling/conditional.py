"""Callbacks that run only some of the time."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class ConditionalCallback(ProxyCallback):
    """Forwards hooks only while `is_enabled` is true; `setup`, `before_train` and `after_train` always.

    Args:
        callback: the callback to pass hooks on to.
    """

    def is_enabled(self) -> bool:
        """Whether the hooks on the host run now."""
        raise NotImplementedError

    def overrides(self, hook: str) -> bool:
        return self.callback.overrides(hook)

    def before_epoch(self) -> None:
        if self.is_enabled():
            self.callback.before_epoch()

    def after_epoch(self) -> None:
        if self.is_enabled():
            self.callback.after_epoch()

    def trigger_step(self) -> None:
        if self.is_enabled():
            self.callback.trigger_step()

    def trigger_epoch(self) -> None:
        if self.is_enabled():
            self.callback.trigger_epoch()

    def trigger(self) -> None:
        if self.is_enabled():
            self.callback.trigger()


class EnableCallbackIf(ConditionalCallback):
    """Runs the hooks of another callback only while a condition holds.

    Args:
        callback: whose hooks are run.
        condition: takes the trainer; called right before a hook.

    Raises:
        CallbackError: the condition is not a function, or the callback has hooks that are traced into the step.
    """

    def __init__(self, callback: Callback, condition: Callable[[Trainer], bool]) -> None:
        super().__init__(callback)
        if not callable(condition):
            raise CallbackError(f"EnableCallbackIf of {callback.name}: the condition must be a function of the trainer")
        if callback.overrides("before_run") or callback.overrides("after_run"):
            raise CallbackError(
                f"EnableCallbackIf of {callback.name}: its before_run or after_run is traced into the step; use "
                "tf.cond in it, or PeriodicCallback"
            )
        self._condition = condition

    def is_enabled(self) -> bool:
        return bool(self._condition(self.trainer))


class PeriodicCallback(ConditionalCallback):
    """Runs all hooks of another callback only in every k-th step or epoch.

    `PeriodicTrigger` is about `trigger` alone and replaces the callback's schedule; this one thins it out, including
    hooks that are traced into the step. With both intervals a hook runs when either fits.

    Args:
        callback: whose hooks are run.
        every_k_steps: enable it in the steps whose number is a multiple of this.
        every_k_epochs: enable it in the epochs whose number is a multiple of this.

    Raises:
        CallbackError: neither is given, or one is not a positive whole number.
    """

    def __init__(
        self, callback: Callback, *, every_k_steps: int | None = None, every_k_epochs: int | None = None
    ) -> None:
        super().__init__(callback)
        given = [interval for interval in (every_k_steps, every_k_epochs) if interval is not None]
        if not given or not all(isinstance(k, Integral) and not isinstance(k, bool) and k > 0 for k in given):
            raise CallbackError(
                f"PeriodicCallback of {callback.name}: give every_k_steps or every_k_epochs, a positive whole number"
            )
        self._every_k_steps = None if every_k_steps is None else int(every_k_steps)
        self._every_k_epochs = None if every_k_epochs is None else int(every_k_epochs)

    def is_enabled(self) -> bool:
        return bool(self._fits(self.trainer.global_step, self.trainer.epoch_num))

    def before_run(self) -> None:
        self._run_in_step("before_run")

    def after_run(self, outputs: dict[str, Any]) -> None:
        self._run_in_step("after_run", outputs)

    def _run_in_step(self, hook: str, *arguments: Any) -> None:
        """Run a hook if the step that is under way is its turn: a bool in Python, and a tensor where it is traced."""
        completed = self.trainer.counter.begun
        fits = self._fits(completed + 1, completed // self.trainer.steps_per_epoch + 1)

        def run() -> tf.Tensor:
            getattr(self.callback, hook)(*arguments)
            return tf.constant(True)

        if tf.is_tensor(fits):
            tf.cond(fits, run, lambda: tf.constant(False))
        elif fits:
            run()

    def next_step(self, step: int) -> int | None:
        due = self.callback.next_step(step)
        while due is not None and not self._fits(due, self._epoch_of(due)):
            if due >= self.trainer.total_steps:
                return None
            due = self.callback.next_step(self._next_fitting(due) - 1)
        return due

    def _fits(self, step: Any, epoch: Any) -> Any:
        by_steps = self._every_k_steps is not None and step % self._every_k_steps == 0
        by_epochs = self._every_k_epochs is not None and epoch % self._every_k_epochs == 0
        return by_steps | by_epochs

    def _epoch_of(self, step: int) -> int:
        return (step - 1) // self.trainer.steps_per_epoch + 1

    def _next_fitting(self, step: int) -> int:
        found = []
        if self._every_k_steps is not None:
            found.append((step // self._every_k_steps + 1) * self._every_k_steps)
        if self._every_k_epochs is not None:
            epoch = (self._epoch_of(step) // self._every_k_epochs + 1) * self._every_k_epochs
            found.append((epoch - 1) * self.trainer.steps_per_epoch + 1)
        return min(found)
