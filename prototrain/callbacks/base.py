"""Base classes of callbacks, and periodic triggers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

HOOKS = (
    *("setup", "check_run", "before_train", "after_train", "before_epoch", "after_epoch", "before_run", "after_run"),
    *("after_steps", "trigger_step", "trigger_epoch", "trigger"),
    *("next_step", "watches", "state_dict", "load_state_dict"),
)
"""All methods of `Callback` that a subclass may override."""


class Priority(IntEnum):
    """Order of callbacks within one hook. Lower values run first; ties keep the order of the list.

    Evaluation is the default and runs first. Decisions, writers and savers follow, so a checkpoint holds the
    measurements and decisions of its step. The best checkpoint is saved (`SAVE_BEST`) before `EarlyStopping` replaces
    the measured weights (`RESTORE_BEST`).
    """

    EVALUATE = 100
    DECIDE = 200
    WRITE = 300
    SAVE_BEST = 340
    RESTORE_BEST = 360
    SAVE = 400


class Callback:
    """Base class of callbacks. Override the hooks you need; by default they do nothing.

        setup                         the model is built, no step has run
        check_run                     the newest checkpoint is restored, nothing is written
        before_train
          before_epoch                right before the steps; keep it cheap
            before_run                traced into the compiled step (TensorFlow ops only)
            after_run(outputs)        traced into the compiled step (TensorFlow ops only)
            after_steps(scalars)      with the scalars of one or more steps
            trigger_step              after each step that `next_step` requested
          after_epoch                 right after the steps; keep it cheap
          trigger_epoch               calls `trigger` unless overridden
        after_train                   always called, even after an error

    Implement *what* happens in `trigger`. The user chooses *when* with `every`: ``MyCallback().every(steps=100)``.
    Each hook runs once per step: if an error or a signal interrupts the callbacks of a step, the resumed run calls
    those that had not finished.

    `self.trainer` gives access to the run: `global_step`, `epoch_num`, `outputs`, `state` and the other attributes of
    `Trainer`. Record scalars with `trainer.monitors.put_scalar`, print with `trainer.log`, write a checkpoint with
    `trainer.save`, and raise `StopTraining` to end the run.

    Attributes:
        trainer: the trainer, set before `setup`.
        at_end: whether the callback is due when the run ends within an interval or an epoch. Set it to False if
            `trigger` or `after_epoch` changes the training; a run that is extended later then equals an
            uninterrupted one.
        chief_only: whether the callback runs only on the chief of several workers.
        priority: the order within a hook; see `Priority`.
        state_key: the name of the callback's state in a checkpoint. Defaults to the class name. Two callbacks with
            state need different keys.
    """

    chief_only: bool = True
    priority: int = Priority.EVALUATE
    state_key: str | None = None
    at_end: bool = True
    trainer: Trainer

    def setup(self) -> None:
        """Called once the model is built, before a checkpoint is restored.

        Write files in `before_train` instead: a fresh run deletes the experiment's directory after this hook.
        """

    def check_run(self) -> None:
        """Called after a checkpoint is restored and before the run writes anything. Raise an error to stop.

        It is not called if no step is left to do.
        """

    def before_train(self) -> None:
        """Called once before the first step, after a checkpoint is restored."""

    def after_train(self) -> None:
        """Called once after the last step on every callback that was set up, even after an error."""

    def before_epoch(self) -> None:
        """Called right before the steps of an epoch.

        A run that is resumed within an epoch calls this hook again if the checkpoint has no state of the callback.
        Changes to `trainer.state` are then undone.
        """

    def after_epoch(self) -> None:
        """Called right after the steps of an epoch. Skipped if the run ends within the epoch and `at_end` is False."""

    def before_run(self) -> None:
        """Add TensorFlow ops that run before each step. A plain-Python trainer calls it before `run_step`.

        In a compiled step, `trainer.global_step` is a tensor here and in `after_run`: the number of completed steps,
        0 in the first step.
        """

    def after_run(self, outputs: dict[str, Any]) -> None:
        """Add TensorFlow ops that run after each step. A plain-Python trainer calls it after `run_step`.

        Args:
            outputs: the step's scalars by name, as tensors. In a plain-Python trainer, as returned by `run_step`.
        """

    def after_steps(self, scalars: Mapping[str, Sequence[Any]]) -> None:
        """Called after each compiled call, before `trigger_step`. Costs much less than ops in every step.

        The number of steps in a call varies. A scalar that is recorded here belongs to the last step of the call.

        Args:
            scalars: the scalars of each step of the call, by name. In a plain-Python trainer, as `run_step` returned
                them.
        """

    def trigger_step(self) -> None:
        """Called after each step that `next_step` requested."""

    def trigger_epoch(self) -> None:
        """Called after each epoch. Calls `trigger` by default."""
        self.trigger()

    def trigger(self) -> None:
        """Perform the action of this callback. The schedule is separate; see `every`."""

    def next_step(self, step: int) -> int | None:
        """Return the next step after `step` at which `trigger_step` must run, or None if it is not known yet.

        Defaults to `step + 1` if the class overrides `trigger_step`. The loop calls it before each call of the trainer.
        """
        return step + 1 if self.overrides("trigger_step") else None

    def watches(self) -> Collection[str] | None:
        """Return the names of the model's or the batch's tensors that `trigger` reads from `trainer.watched`.

        Return an empty collection to get only `trainer.summary_events`, or None to get neither. Called once, after
        `setup`.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""

    def every(
        self,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        seconds: float | None = None,
        before_train: bool = False,
    ) -> PeriodicTrigger:
        """Return a callback that runs `trigger` at an interval; see `PeriodicTrigger` for the arguments."""
        return PeriodicTrigger(
            self, every_k_steps=steps, every_k_epochs=epochs, every_n_seconds=seconds, before_train=before_train
        )

    def overrides(self, hook: str) -> bool:
        """Return whether this callback overrides a hook. The loop calls only overridden hooks."""
        return getattr(type(self), hook) is not getattr(Callback, hook)

    @property
    def name(self) -> str:
        """The callback's name in messages."""
        return type(self).__name__

    def __repr__(self) -> str:
        return f"{self.name}()"


class ProxyCallback(Callback):
    """Forwards every hook to another callback. Base class of callbacks that change the schedule of another callback.

    Args:
        callback: the callback that receives the hooks.
    """

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.chief_only, self.priority, self.state_key = callback.chief_only, callback.priority, callback.state_key

    @property
    def at_end(self) -> bool:  # type: ignore[override]
        """The wrapped callback's `at_end`, which may change."""
        return self.callback.at_end

    @property
    def name(self) -> str:
        return self.callback.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.callback!r})"

    def overrides(self, hook: str) -> bool:
        own = getattr(type(self), hook) is not getattr(ProxyCallback, hook)
        return own or self.callback.overrides(hook)

    def setup(self) -> None:
        self.callback.trainer = self.trainer
        self.callback.setup()


def _forwarding(hook: str) -> Callable[..., Any]:
    def forward(self: ProxyCallback, *arguments: Any) -> Any:
        return getattr(self.callback, hook)(*arguments)

    return forward


for _hook in set(HOOKS) - {"setup"}:
    setattr(ProxyCallback, _hook, _forwarding(_hook))


class PeriodicTrigger(ProxyCallback):
    """Runs another callback's `trigger` at an interval. The interval replaces the callback's own schedule.

    With several intervals the callback runs when any of them is due, at most once per step. The last step of a run is
    also due unless the callback's `at_end` is False. Steps and epochs count from the start of training, so a resumed
    run triggers at the same steps. Seconds are measured in the current process.

    Args:
        callback: the callback to trigger.
        every_k_steps: run at multiples of this number of steps.
        every_k_epochs: run at the end of every k-th epoch.
        every_n_seconds: run when this many seconds have passed since the last trigger.
        before_train: also run before the first step of training, but not when a run is resumed.

    Raises:
        CallbackError: an interval is not positive, no interval is given, or the callback has no `trigger`;
            `before_train` is set for a callback that runs before the first step anyway.
    """

    clock = staticmethod(time.monotonic)

    def __init__(
        self,
        callback: Callback,
        *,
        every_k_steps: int | None = None,
        every_k_epochs: int | None = None,
        every_n_seconds: float | None = None,
        before_train: bool = False,
    ) -> None:
        super().__init__(callback)
        if not callback.overrides("trigger"):
            raise CallbackError(f"{callback.name} has no trigger(), so there is nothing to run at an interval")
        given = {"steps": every_k_steps, "epochs": every_k_epochs, "seconds": every_n_seconds}
        self.intervals = {unit: interval for unit, interval in given.items() if interval is not None}
        for unit, interval in self.intervals.items():
            kind = Real if unit == "seconds" else Integral  # NumPy's numbers too
            if not isinstance(interval, kind) or isinstance(interval, bool) or not interval > 0:
                raise CallbackError(f"{callback.name}: an interval in {unit} must be positive, got {interval!r}")
        if not before_train and not self.intervals:
            raise CallbackError(f"{callback.name}: say how often, for example .every(steps=100)")
        if before_train and getattr(innermost(callback), "at_start", False):
            raise CallbackError(f"{callback.name} already runs before the first step: leave out before_train=True")
        self.is_due_at_start = before_train
        self._last_time = self.clock()

    def __repr__(self) -> str:
        words = [f"{unit}={interval}" for unit, interval in self.intervals.items()]
        return f"{self.callback!r}.every({', '.join(words + ['before_train=True'] * self.is_due_at_start)})"

    def before_train(self) -> None:
        self.callback.before_train()
        self._last_time = self.clock()
        if self.is_due_at_start and self.trainer.run.is_fresh:
            self.trigger()

    def next_step(self, step: int) -> int | None:
        due = [self.trainer.total_steps] if self.at_end else []
        for unit, interval in self.intervals.items():
            if unit != "seconds":
                steps = int(interval) * (self.trainer.steps_per_epoch if unit == "epochs" else 1)
                due.append((step // steps + 1) * steps)
            elif self.clock() - self._last_time >= interval:
                due.append(step + 1)
        return min(due, default=None)

    # `CallbackGroup` calls one of the next two hooks when the callback is due: at the end of an epoch or of the run
    # `trigger_epoch`, so that a saver by steps never runs before a validation by epochs.
    def trigger_step(self) -> None:
        self.trigger()

    def trigger_epoch(self) -> None:
        self.trigger()

    def trigger(self) -> None:
        self._last_time = self.clock()
        self.callback.trigger()


def require_same_steps(callback: Callback) -> None:
    """Raise a CallbackError unless a callback runs at the same steps on all workers."""
    trainer = callback.trainer
    outer = [one for one in trainer.callbacks if innermost(one) is callback] if trainer.workers > 1 else []
    for one in (part for whole in outer for part in chain(whole)):
        if one.chief_only or (isinstance(one, PeriodicTrigger) and "seconds" in one.intervals):
            rule = "leave chief_only False, and use steps= or epochs="
            raise CallbackError(f"{callback.name} must run at the same steps on all workers: {rule}")


def chain(callback: Callback) -> Iterator[Callback]:
    """Yield a callback and the callbacks that it wraps, innermost last."""
    yield callback
    while isinstance(callback, ProxyCallback):
        callback = callback.callback
        yield callback


def innermost(callback: Callback) -> Callback:
    """Return the callback inside any number of proxies."""
    *_, found = chain(callback)
    return found
