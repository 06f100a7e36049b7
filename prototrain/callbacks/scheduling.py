"""Callbacks that wrap functions, and conditional callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

Hook = Callable[["CallbackFactory"], Any]


class CallbackFactory(Callback):
    """Creates a callback from functions. Each function takes the callback, which has the attribute ``trainer``.

        CallbackFactory(trigger=lambda self: print(self.trainer.global_step)).every(steps=100)

    Args:
        setup, before_train, trigger, after_train: functions for these hooks of `Callback`.
        priority: the order within a hook; see `Priority`.
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
        self._functions = {"setup": setup, "before_train": before_train, "trigger": trigger, "after_train": after_train}
        self.priority = priority

    def overrides(self, hook: str) -> bool:
        hook = "trigger" if hook == "trigger_epoch" else hook
        return self._functions[hook] is not None if hook in self._functions else super().overrides(hook)

    def setup(self) -> None:
        self._call("setup")

    def before_train(self) -> None:
        self._call("before_train")

    def trigger(self) -> None:
        self._call("trigger")

    def after_train(self) -> None:
        self._call("after_train")

    def _call(self, hook: str) -> None:
        function = self._functions[hook]
        if function is not None:
            function(self)


class RunOp(Callback):
    """Runs a function before training, when triggered, or within every step.

        RunOp(lambda: target.assign(weights))

    Args:
        function: a function without arguments.
        run_before: whether to call it before the first step of training, but not when a run is resumed.
        run_as_trigger: whether to call it in `trigger`, by default after each epoch.
        run_step: whether to call it in every step. It is then traced into the compiled step and may only use
            TensorFlow ops.

    Raises:
        CallbackError: `function` is not callable.
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
        if not callable(function):
            raise CallbackError(
                f"RunOp takes a function, not {function!r}; write RunOp(lambda: variable.assign(value))"
            )
        self.function = function
        self._run_before = run_before
        self._runs = {"after_run": run_step, "trigger": run_as_trigger, "trigger_epoch": run_as_trigger}

    def overrides(self, hook: str) -> bool:
        return self._runs[hook] if hook in self._runs else super().overrides(hook)

    def before_train(self) -> None:
        if self._run_before and self.trainer.run.is_fresh:
            self.function()

    def after_run(self, outputs: dict[str, Any]) -> None:
        self.function()

    def trigger(self) -> None:
        self.function()


_CONDITIONAL = ("before_epoch", "after_epoch", "trigger_step", "trigger_epoch", "trigger")


class _ConditionalCallback(ProxyCallback):
    """Forwards hooks while `is_enabled` is true. Always forwards `setup`, `before_train` and `after_train`."""

    def is_enabled(self) -> bool:
        raise NotImplementedError

    def overrides(self, hook: str) -> bool:
        return self.callback.overrides(hook)


def _forwarding_if_enabled(hook: str) -> Callable[[_ConditionalCallback], None]:
    def forward(self: _ConditionalCallback) -> None:
        if self.is_enabled():
            getattr(self.callback, hook)()

    return forward


for _hook in _CONDITIONAL:
    setattr(_ConditionalCallback, _hook, _forwarding_if_enabled(_hook))


class EnableCallbackIf(_ConditionalCallback):
    """Runs a callback's hooks of steps and epochs while a condition holds. `before_train` and `after_train` always run.

    Args:
        callback: the callback to run.
        condition: takes the trainer and returns whether to run a hook. Called right before each hook.

    Raises:
        CallbackError: the callback has hooks that are traced into the step, or no hooks of steps and epochs.
    """

    def __init__(self, callback: Callback, condition: Callable[[Trainer], bool]) -> None:
        super().__init__(callback)
        if any(map(callback.overrides, ("before_run", "after_run", "after_steps"))):
            raise CallbackError(
                f"EnableCallbackIf: {callback.name} runs in every step; use tf.cond in it, or PeriodicCallback"
            )
        if not any(map(callback.overrides, _CONDITIONAL)):
            raise CallbackError(f"EnableCallbackIf: {callback.name} has no hook of steps or epochs")
        self.condition = condition

    def is_enabled(self) -> bool:
        return bool(self.condition(self.trainer))


class PeriodicCallback(_ConditionalCallback):
    """Runs all hooks of another callback, including traced ones, in every k-th step or epoch.

    In contrast, `PeriodicTrigger` replaces the callback's schedule and applies to `trigger` only. With both intervals,
    a hook runs when either matches.

    Args:
        callback: the callback to run.
        every_k_steps, every_k_epochs: run the hooks in steps, or epochs, whose number is a multiple of this.

    Raises:
        CallbackError: no interval is given, or an interval is not a positive integer.
    """

    def __init__(
        self, callback: Callback, *, every_k_steps: int | None = None, every_k_epochs: int | None = None
    ) -> None:
        super().__init__(callback)
        given = [interval for interval in (every_k_steps, every_k_epochs) if interval is not None]
        if not given or not all(isinstance(k, Integral) and k > 0 for k in given):
            raise CallbackError(
                f"PeriodicCallback of {callback.name}: give every_k_steps or every_k_epochs, a positive whole number"
            )
        self._every_k_steps = every_k_steps
        self._every_k_epochs = every_k_epochs

    def is_enabled(self) -> bool:
        return bool(self._fits(self.trainer.global_step, self.trainer.epoch_num))

    def before_run(self) -> None:
        self._run_in_step("before_run")

    def after_run(self, outputs: dict[str, Any]) -> None:
        self._run_in_step("after_run", outputs)

    def after_steps(self, scalars: Mapping[str, Sequence[Any]]) -> None:
        last, length = self.trainer.global_step, self.trainer.steps_per_epoch
        count = max(map(len, scalars.values()), default=0)
        steps = range(last - count + 1, last + 1)
        fitting = [place for place, step in enumerate(steps) if self._fits(step, (step - 1) // length + 1)]
        if fitting:
            kept = {name: [values[place] for place in fitting] for name, values in scalars.items()}
            self.callback.after_steps(kept)

    def _run_in_step(self, hook: str, *arguments: Any) -> None:
        """Run a hook if the current step matches. In a compiled step, the condition is a tensor."""
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
        while due is not None and (fitting := self._first_fitting(due)) > due:
            due = self.callback.next_step(fitting - 1) if fitting <= self.trainer.total_steps else None
        return due

    def _first_fitting(self, step: int) -> int:
        """Return the first step, `step` or a later one, in which the hooks run."""
        length, found = self.trainer.steps_per_epoch, []
        if self._every_k_steps is not None:
            found.append(step + -step % self._every_k_steps)
        if self._every_k_epochs is not None:
            epoch = (step - 1) // length + 1
            waiting = -epoch % self._every_k_epochs
            found.append((epoch + waiting - 1) * length + 1 if waiting else step)
        return min(found)

    def _fits(self, step: Any, epoch: Any) -> Any:
        by_steps = self._every_k_steps is not None and step % self._every_k_steps == 0
        by_epochs = self._every_k_epochs is not None and epoch % self._every_k_epochs == 0
        return by_steps | by_epochs
