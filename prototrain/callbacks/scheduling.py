"""Callbacks that wrap functions, and conditional callbacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Callback, PeriodicTrigger, ProxyCallback, chain
from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

Hook = Callable[["CallbackFactory"], Any]


class CallbackFactory(Callback):
    """Creates a callback from functions. Each function takes the callback, which has the attribute ``trainer``.

        CallbackFactory(trigger=lambda self: print(self.trainer.global_step)).every(steps=100)

    Args:
        setup, before_train, trigger, after_train: functions for these hooks of `Callback`.
        priority, at_end: as of `Callback`; set `at_end` to False if `trigger` changes the training.
    """

    def __init__(
        self,
        *,
        setup: Hook | None = None,
        before_train: Hook | None = None,
        trigger: Hook | None = None,
        after_train: Hook | None = None,
        priority: int = Callback.priority,
        at_end: bool = True,
    ) -> None:
        given = {"setup": setup, "before_train": before_train, "trigger": trigger, "after_train": after_train}
        self._functions = {hook: function for hook, function in given.items() if function is not None}
        for hook, function in self._functions.items():
            setattr(self, hook, partial(function, self))
        self.priority, self.at_end = priority, at_end

    def overrides(self, hook: str) -> bool:
        return ("trigger" if hook == "trigger_epoch" else hook) in self._functions or super().overrides(hook)


class RunOp(Callback):
    """Runs a function before training, when triggered, or within every step.

        RunOp(lambda: target.assign(weights))

    As it may change the training, it does not run at the end of a run that ends within an interval or an epoch.

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
    at_end = False

    def __init__(
        self,
        function: Callable[[], Any],
        *,
        run_before: bool = True,
        run_as_trigger: bool = True,
        run_step: bool = False,
    ) -> None:
        if not callable(function):
            raise CallbackError(f"RunOp takes a function, such as lambda: variable.assign(0), not {function!r}")
        self.function = function
        self.at_start = run_before
        self._runs = {"after_run": run_step, "trigger": run_as_trigger, "trigger_epoch": run_as_trigger}

    def overrides(self, hook: str) -> bool:
        return self._runs[hook] if hook in self._runs else super().overrides(hook)

    def before_train(self) -> None:
        if self.at_start and self.trainer.run.is_fresh:
            self.function()

    def after_run(self, outputs: dict[str, Any]) -> None:
        self.function()

    def trigger(self) -> None:
        self.function()


_CONDITIONAL = ("before_epoch", "after_epoch", "trigger_step", "trigger_epoch", "trigger")


class EnableCallbackIf(ProxyCallback):
    """Runs a callback's hooks of steps and epochs while a condition holds. `before_train` and `after_train` always run.

    Args:
        callback: the callback to run.
        condition: takes the trainer and returns whether to run a hook. Called right before each hook.

    Raises:
        CallbackError: the callback has hooks that are traced into the step, no hooks of steps and epochs, or an
            interval in seconds.
    """

    def __init__(self, callback: Callback, condition: Callable[[Trainer], bool]) -> None:
        super().__init__(callback)
        if any(isinstance(one, PeriodicTrigger) and "seconds" in one.intervals for one in chain(callback)):
            # It would be due after each step while the condition does not hold.
            raise CallbackError(f"write {type(self).__name__}(callback, ...).every(seconds=...), not around .every()")
        if any(map(callback.overrides, ("before_run", "after_run", "after_steps"))):
            raise CallbackError(
                f"{type(self).__name__}: {callback.name} runs in every step, which cannot be switched off"
            )
        if not any(map(callback.overrides, _CONDITIONAL)):
            raise CallbackError(f"{type(self).__name__}: {callback.name} has no hook of steps or epochs")
        self.condition = condition

    def overrides(self, hook: str) -> bool:
        return self.callback.overrides(hook)


def _forwarding_if_enabled(hook: str) -> Callable[[EnableCallbackIf], None]:
    def forward(self: EnableCallbackIf) -> None:
        if self.condition(self.trainer):
            getattr(self.callback, hook)()

    return forward


for _hook in _CONDITIONAL:
    setattr(EnableCallbackIf, _hook, _forwarding_if_enabled(_hook))


class PeriodicCallback(EnableCallbackIf):
    """Runs a callback's hooks of steps and epochs in every k-th step or epoch.

    In contrast, `PeriodicTrigger` replaces the callback's schedule and applies to `trigger` only. With both intervals,
    a hook runs when either matches.

    Args:
        callback: the callback to run.
        every_k_steps, every_k_epochs: run the hooks in steps, or epochs, whose number is a multiple of this.

    Raises:
        CallbackError: no interval is given, an interval is not a positive integer, or the callback does not suit
            `EnableCallbackIf`.
    """

    def __init__(
        self, callback: Callback, *, every_k_steps: int | None = None, every_k_epochs: int | None = None
    ) -> None:
        super().__init__(callback, lambda trainer: self._fits(trainer.global_step, trainer.epoch_num))
        given = [interval for interval in (every_k_steps, every_k_epochs) if interval is not None]
        if not given or not all(isinstance(k, Integral) and k > 0 for k in given):
            what = "give every_k_steps or every_k_epochs, a positive whole number"
            raise CallbackError(f"PeriodicCallback of {callback.name}: {what}")
        self._every_k_steps, self._every_k_epochs = every_k_steps, every_k_epochs

    def overrides(self, hook: str) -> bool:
        return hook == "next_step" or super().overrides(hook)

    def next_step(self, step: int) -> int | None:
        """Return the callback's next step, but none before the next matching step or epoch."""
        due, length = self.callback.next_step(step), self.trainer.steps_per_epoch
        if due is None:
            return None
        epoch, matching = (due - 1) // length + 1, []
        if self._fits(due, epoch):
            return due
        if self._every_k_steps is not None:
            matching.append(due + -due % self._every_k_steps)
        if self._every_k_epochs is not None:
            next_epoch = epoch + -epoch % self._every_k_epochs
            matching.append((next_epoch - 1) * length + 1)
        return self.callback.next_step(min(matching) - 1)

    def _fits(self, step: int, epoch: int) -> bool:
        by_steps = self._every_k_steps is not None and step % self._every_k_steps == 0
        return by_steps or (self._every_k_epochs is not None and epoch % self._every_k_epochs == 0)
