"""The callback: everything around the training loop that is not the iteration itself."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import IntEnum
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_HOOKS = ("before_train", "after_train", "before_epoch", "after_epoch", "before_run", "after_run")
_TRIGGERS = ("trigger_step", "trigger_epoch", "trigger")
_TENSORPACK = {
    **{f"_{name}": name for name in (*_HOOKS, *_TRIGGERS, "chief_only")},
    "_setup_graph": "setup",
    "process_scalar": "put_scalar",
}


class Priority(IntEnum):
    """Order of callbacks within one hook, smallest first; equal ones keep the order of the list.

    By default callbacks run with the evaluations. Those that decide by what was measured, those that write and those
    that save follow, so a checkpoint holds the measurements and decisions of its step. A best checkpoint is kept before
    other weights replace those that were measured.
    """

    EVALUATE = 100
    DECIDE = 200
    WRITE = 300
    KEEP = 340
    PUT_BACK = 360
    SAVE = 400


class Callback:
    """Base class of callbacks: everything around the loop. Override the hooks you need; each does nothing by default.

        setup                         the model is built, nothing has run
        before_train
          before_epoch                cheap: it is right before the steps
            before_run                traced into the compiled step (TensorFlow ops only)
            after_run(outputs)        traced into the compiled step (TensorFlow ops only)
            trigger_step              after a step that `next_step` asked for
          after_epoch                 cheap: it is right after the steps
          trigger_epoch               calls `trigger` unless overridden
        after_train                   always, also when something failed

    Say *what* happens in `trigger`, and let the user say *when* with `every`: ``MyCallback().every(steps=100)``.

    `self.trainer` gives access to the run: `global_step`, `epoch_num`, `outputs`, `state`, and all that `Trainer`
    explains. Record scalars with `trainer.monitors.put_scalar`, print with `trainer.log`, write a checkpoint with
    `trainer.save`, and raise `StopTraining` to end the run.

    Attributes:
        trainer: the trainer, set before `setup`.
        at_end: whether the callback is due at the end of a run that ends within an interval or an epoch. False if
            `trigger` or `after_epoch` changes the training, so that a run that is extended later equals one that
            never ended.
        chief_only: run only on the chief of several workers.
        priority: the order within a hook, see `Priority`.
        state_key: the name of this callback's state in a checkpoint; the class's name if None. Two callbacks with state
            need two keys.
    """

    chief_only: bool = True
    priority: int = Priority.EVALUATE
    state_key: str | None = None
    at_end: bool = True
    trainer: Trainer

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Refuse hooks under tensorpack's names, which are never called."""
        super().__init_subclass__(**keywords)
        if cls.__module__.startswith("prototrain."):
            return
        own = {name for kind in cls.__mro__ if not kind.__module__.startswith("prototrain.") for name in vars(kind)}
        for name, here in _TENSORPACK.items():
            if name in vars(cls) and here not in own:
                raise CallbackError(f"{cls.__name__} has {name}, tensorpack's name of {here}; call it {here}")

    def setup(self) -> None:
        """Prepare; the model is built, no step has run and nothing is restored yet."""

    def check_run(self) -> None:
        """Called after a checkpoint was restored and before the run writes anything; raise if something is wrong."""

    def before_train(self) -> None:
        """Called once before the first step, after a checkpoint was restored."""

    def after_train(self) -> None:
        """Called once after the last step, on every callback that was set up, even when the run or another failed."""

    def before_epoch(self) -> None:
        """Called right before the steps of an epoch.

        A run that is resumed within an epoch calls it again if the checkpoint has no state of this callback; changes
        of `trainer.state` are then undone.
        """

    def after_epoch(self) -> None:
        """Called right after the steps of an epoch; if the end of the run cuts it short, unless `at_end` is False."""

    def before_run(self) -> None:
        """Add TensorFlow ops that run before each iteration. In a plain-Python trainer: called before `run_step`.

        `trainer.global_step` is a tensor here and in `after_run`: the number of completed steps, 0 in the first.
        """

    def after_run(self, outputs: dict[str, Any]) -> None:
        """Add TensorFlow ops that run after each iteration. In a plain-Python trainer: called after `run_step`.

        Args:
            outputs: the step's scalars by name, as tensors (in a plain-Python trainer as `run_step` returned them).
        """

    def trigger_step(self) -> None:
        """Called after a step that `next_step` asked for."""

    def trigger_epoch(self) -> None:
        """Called after each epoch. By default: `trigger`."""
        self.trigger()

    def trigger(self) -> None:
        """What this callback does, without knowing when."""

    def next_step(self, step: int) -> int | None:
        """Return the next step at which `trigger_step` must run, larger than `step`, or None if it is not known yet.

        By default `step + 1` if the class overrides `trigger_step`. The loop asks before each call of the trainer.
        """
        return step + 1 if self.overrides("trigger_step") else None

    def watches(self) -> Collection[str] | None:
        """Return the names of tensors, in the model's mapping or in the batch, that `trigger` needs from its step.

        They are then in `trainer.watched`. An empty collection asks for `trainer.summary_events` only, None for
        nothing. Asked once, after `setup`.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs of this callback, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned when the checkpoint was written."""

    def every(
        self,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        seconds: float | None = None,
        before_train: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> PeriodicTrigger:
        """Run `trigger` at an interval; short for `PeriodicTrigger`, which explains the arguments."""
        return PeriodicTrigger(
            self,
            every_k_steps=steps,
            every_k_epochs=epochs,
            every_n_seconds=seconds,
            before_train=before_train,
            clock=clock,
        )

    def overrides(self, hook: str) -> bool:
        """Whether this callback overrides a hook; the loop never calls the others."""
        return getattr(type(self), hook) is not getattr(Callback, hook)

    @property
    def name(self) -> str:
        """The callback's name in messages."""
        return type(self).__name__

    @property
    def wraps(self) -> Any:
        """The object of another library that this callback calls, or None."""
        return None

    def __repr__(self) -> str:
        return f"{self.name}()"


class ProxyCallback(Callback):
    """Forwards every hook to another callback. Base of callbacks that change when, or whether, another one runs.

    Args:
        callback: receives the hooks.
    """

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.chief_only = callback.chief_only
        self.priority = callback.priority
        self.state_key = callback.state_key
        self.at_end = callback.at_end

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


for _hook in (*_HOOKS, *_TRIGGERS, "check_run", "next_step", "watches", "state_dict", "load_state_dict"):
    setattr(ProxyCallback, _hook, _forwarding(_hook))


class PeriodicTrigger(ProxyCallback):
    """Runs another callback's `trigger` at an interval, instead of that callback's schedule.

    With several intervals the callback runs when any of them is due, once per step at most. The last step of a run
    counts as due, too, unless the callback's `at_end` is False. Steps and epochs are counted from the start of
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
        given = {"steps": every_k_steps, "epochs": every_k_epochs, "seconds": every_n_seconds}
        self.intervals = {unit: interval for unit, interval in given.items() if interval is not None}
        for unit, interval in self.intervals.items():
            kind = Real if unit == "seconds" else Integral  # NumPy's numbers too
            if not isinstance(interval, kind) or isinstance(interval, bool) or not interval > 0:
                raise CallbackError(f"{callback.name}: an interval in {unit} must be positive, got {interval!r}")
        if not before_train and not self.intervals:
            raise CallbackError(f"{callback.name}: say how often, for example .every(steps=100)")
        self.is_due_at_start = before_train
        self._clock = clock
        self._last_time = clock()
        self._last_step = -1

    def __repr__(self) -> str:
        words = [f"{unit}={interval}" for unit, interval in self.intervals.items()]
        return f"{self.callback!r}.every({', '.join(words + ['before_train=True'] * self.is_due_at_start)})"

    def setup(self) -> None:
        super().setup()
        self._last_step = -1

    def before_train(self) -> None:
        self.callback.before_train()
        self._last_time = self._clock()
        if self.is_due_at_start and self.trainer.global_step == 0:
            self.fire()

    def next_step(self, step: int) -> int | None:
        due = [self.trainer.total_steps] if self.at_end else []
        for unit, interval in self.intervals.items():
            if unit != "seconds":
                steps = int(interval) * (self.trainer.steps_per_epoch if unit == "epochs" else 1)
                due.append((step // steps + 1) * steps)
            elif self._clock() - self._last_time >= interval:
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


def chain(callback: Callback) -> Iterator[Callback]:
    """Yield a callback and, if it is a proxy, the callbacks that it stands for, the innermost last."""
    yield callback
    while isinstance(callback, ProxyCallback):
        callback = callback.callback
        yield callback


def innermost(callback: Callback) -> Callback:
    """Return the callback behind any number of proxies."""
    *_, found = chain(callback)
    return found


def compiled_pattern(who: str, pattern: str) -> re.Pattern[str]:
    """Compile a regular expression that `who` was given; a CallbackError if it is none."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise CallbackError(f"{who}: {pattern!r} is not a regular expression: {error}") from error


def matching_variables(who: str, variables: Mapping[str, Any], pattern: str) -> dict[str, Any]:
    """The variables whose full names match a regular expression that `who` was given; a CallbackError if none does."""
    compiled = compiled_pattern(who, pattern)
    found = {name: variable for name, variable in variables.items() if compiled.fullmatch(name)}
    if not found:
        raise CallbackError(f"{who}: no trained variable has the name {pattern!r}; there are: {', '.join(variables)}")
    return found
