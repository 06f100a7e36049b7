"""When a callback's `trigger` runs, kept apart from what it does."""

from __future__ import annotations

import time
from collections.abc import Callable
from numbers import Integral, Real

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.errors import CallbackError


class PeriodicTrigger(ProxyCallback):
    """Runs another callback's `trigger` at an interval, instead of that callback's schedule.

    Several intervals may be given; the callback runs when any of them is due, once per step at most. The last step of
    a run counts as due, too, unless the callback's `at_end` is False. Steps and epochs are counted from the start of
    training, so a resumed run fires at the same steps; seconds are counted on the clock of this process.

    Args:
        callback: its `trigger` is what happens.
        every_k_steps: run at the multiples of this number of steps.
        every_k_epochs: run at the end of every k-th epoch.
        every_n_seconds: run when this much time has passed since the last time.
        before_train: also run before the first step of training (not of a resumed run).
        clock: returns the time in seconds.

    Raises:
        CallbackError: an interval is not positive, none is given, or the callback has no `trigger`.
    """

    def __init__(
        self,
        callback: Callback,
        *,
        every_k_steps: int | None = None,
        every_k_epochs: int | None = None,
        every_n_seconds: float | None = None,
        before_train: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(callback)
        if not callback.overrides("trigger"):
            raise CallbackError(f"{callback.name} has no trigger(), so there is nothing to run at an interval")
        intervals = {"steps": every_k_steps, "epochs": every_k_epochs, "seconds": every_n_seconds}
        for unit, interval in intervals.items():
            kind = Real if unit == "seconds" else Integral  # NumPy's numbers too
            right = isinstance(interval, kind) and not isinstance(interval, bool) and interval > 0
            if interval is not None and not right:
                raise CallbackError(f"{callback.name}: an interval in {unit} must be positive, got {interval!r}")
        if not before_train and all(interval is None for interval in intervals.values()):
            raise CallbackError(f"{callback.name}: say how often, for example .every(steps=100)")
        self.every_k_steps = None if every_k_steps is None else int(every_k_steps)
        self.every_k_epochs = None if every_k_epochs is None else int(every_k_epochs)
        self.every_n_seconds = every_n_seconds
        self._before_train = before_train
        self._clock = clock
        self._last_time = clock()
        self._last_step = -1

    def __repr__(self) -> str:
        return f"{self.callback!r}.every({self.schedule})"

    @property
    def schedule(self) -> str:
        """The intervals in words, for tables."""
        intervals = {"steps": self.every_k_steps, "epochs": self.every_k_epochs, "seconds": self.every_n_seconds}
        words = [f"{unit}={interval}" for unit, interval in intervals.items() if interval is not None]
        return ", ".join(words + ["before_train=True"] * self._before_train)

    def setup(self) -> None:
        super().setup()
        self._last_step = -1

    def before_train(self) -> None:
        self.callback.before_train()
        self._last_time = self._clock()
        if self._before_train and self.trainer.global_step == 0:
            self.fire()

    def next_step(self, step: int) -> int | None:
        due = [self.trainer.total_steps] if self.at_end else []
        if self.every_k_steps is not None:
            due.append(_next_multiple(step, self.every_k_steps))
        if self.every_k_epochs is not None:
            due.append(_next_multiple(step, self.every_k_epochs * self.trainer.steps_per_epoch))
        if self.every_n_seconds is not None and self._clock() - self._last_time >= self.every_n_seconds:
            due.append(step + 1)
        return min(due, default=None)

    def trigger_step(self) -> None:
        # At the end of an epoch, and of the run, other callbacks run in trigger_epoch. Waiting for it keeps the order
        # by priority across both, so that a saver by steps never comes before a validation by epochs.
        trainer = self.trainer
        if trainer.local_step < trainer.steps_per_epoch and trainer.global_step < trainer.total_steps:
            self.fire()

    def trigger_epoch(self) -> None:
        step = self.trainer.global_step
        if self.next_step(step - 1) == step:
            self.fire()

    def fire(self) -> None:
        """Run `trigger`, unless it has run for this step."""
        if self._last_step != self.trainer.global_step:
            self._last_step = self.trainer.global_step
            self._last_time = self._clock()
            self.trigger()


def _next_multiple(step: int, interval: int) -> int:
    return (step // interval + 1) * interval
