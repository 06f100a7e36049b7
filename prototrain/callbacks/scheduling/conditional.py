"""Callbacks that run only some of the time."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.errors import CallbackError
from prototrain.step.variables import scratch_variable

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

    def is_enabled_in_run(self) -> Any:
        """Whether the hooks along with an iteration run in this one: a bool, or a bool tensor where it is traced."""
        raise NotImplementedError

    def overrides(self, hook: str) -> bool:
        return self.callback.overrides(hook)

    @property
    def runs_in_steps(self) -> bool:
        """Whether the callback has hooks along with the iterations."""
        return self.callback.overrides("before_run") or self.callback.overrides("after_run")

    def before_epoch(self) -> None:
        if self.is_enabled():
            self.callback.before_epoch()

    def after_epoch(self) -> None:
        if self.is_enabled():
            self.callback.after_epoch()

    def before_run(self) -> None:
        if self.callback.overrides("before_run"):
            _run_if(self.is_enabled_in_run(), self.callback.before_run)

    def after_run(self, outputs: dict[str, Any]) -> None:
        if self.callback.overrides("after_run"):
            _run_if(self.is_enabled_in_run(), lambda: self.callback.after_run(outputs))

    def trigger_step(self) -> None:
        if self.is_enabled():
            self.callback.trigger_step()

    def trigger_epoch(self) -> None:
        if self.is_enabled():
            self.callback.trigger_epoch()

    def trigger(self) -> None:
        if self.is_enabled():
            self.callback.trigger()


class PeriodicCallback(ConditionalCallback):
    """Runs all hooks of another callback only in every k-th step or epoch.

    `PeriodicTrigger` is about `trigger` alone and replaces the callback's schedule; this one thins it out, hooks traced
    into the step included. With both intervals a hook runs when either fits.

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

    def is_enabled_in_run(self) -> Any:
        # The iteration that is under way is the next one to be completed.
        completed = self.trainer.counter.begun
        return self._fits(completed + 1, completed // self.trainer.steps_per_epoch + 1)

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


class EnableCallbackIf(ConditionalCallback):
    """Runs all hooks of another callback only while a condition holds.

    If the callback has hooks traced into the step, the condition is asked before every step, and every compiled call is
    one step long.

    Args:
        callback: whose hooks are run.
        condition: takes the trainer; asked right before a hook would run.
    """

    def __init__(self, callback: Callback, condition: Callable[[Trainer], bool]) -> None:
        super().__init__(callback)
        if not callable(condition):
            raise CallbackError(f"EnableCallbackIf of {callback.name}: the condition must be a function of the trainer")
        self._condition = condition
        self._due: int | None = None

    def setup(self) -> None:
        self._enabled = scratch_variable(False, name="enabled")
        super().setup()

    def overrides(self, hook: str) -> bool:
        return super().overrides(hook) or (hook == "next_step" and self.runs_in_steps)

    def is_enabled(self) -> bool:
        return bool(self._condition(self.trainer))

    def is_enabled_in_run(self) -> Any:
        return self._enabled.read_value() if tf.inside_function() else self.is_enabled()

    def next_step(self, step: int) -> int | None:
        self._due = self.callback.next_step(step)
        if not self.runs_in_steps:
            return self._due
        self._enabled.assign(self.is_enabled())
        return step + 1

    def trigger_step(self) -> None:
        if self._due == self.trainer.global_step:
            super().trigger_step()


def _run_if(condition: Any, hook: Callable[[], Any]) -> None:
    """Call a hook if the condition holds, where that is known; else add it to the graph under the condition."""
    if not tf.is_tensor(condition):
        if condition:
            hook()
        return

    def run() -> tf.Tensor:
        hook()
        return tf.constant(True)

    tf.cond(condition, run, lambda: tf.constant(False))
