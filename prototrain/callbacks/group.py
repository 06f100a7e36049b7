"""The callbacks of one run: order, schedule and calls."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

from prototrain.callbacks.base import HOOKS, Callback, PeriodicTrigger, Priority, chain, innermost
from prototrain.callbacks.monitor import Monitor
from prototrain.errors import CallbackError, CheckpointError, StopTraining
from prototrain.system.terminal import announcing

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

T = TypeVar("T", bound=Callback)


class CallbackGroup:
    """Callbacks of one run, ordered by priority and then by the user's list `callbacks`.

    Attributes:
        callbacks: the callbacks in execution order. Workers other than the chief skip `chief_only` callbacks.
        by_key: the callbacks with state, by state key.
        watchers: for each callback that watches the step, the names of the tensors that it reads; empty if it reads
            only the summary events.
        unfinished: whether callbacks of the current step are still due. If a checkpoint is written then, the resumed
            run calls them.
        watching: whether a callback reads tensors of the step that `next_step` returned last.
        has_ended: whether `after_train` has begun.
        stop_training: the StopTraining of an `after_steps` hook; it ends the run after the callbacks of the step.
        failure: the error that ended the run, or else the first error of an `after_train` hook.
    """

    def __init__(self, trainer: Trainer, callbacks: Iterable[Callback] = ()) -> None:
        self._trainer = trainer
        mine = [callback for callback in as_list(callbacks) if trainer.is_chief or not callback.chief_only]
        self.callbacks = sorted(mine, key=lambda callback: callback.priority)
        self._labels = _labels(self.callbacks)
        self.by_key = _by_state_key(self.callbacks)
        self._overriding = {hook: [one for one in self.callbacks if one.overrides(hook)] for hook in HOOKS}
        self._scheduled = [one for one in self.callbacks if one.overrides("trigger_step") or one.overrides("next_step")]
        self._by_epoch = [one for one in self.callbacks if one.overrides("trigger_epoch") or one.overrides("trigger")]
        # At the end of an epoch or of the run, these run in `trigger_epoch` if `next_step` requests the step.
        self._periodic = {cb for cb in self.callbacks if any(isinstance(one, PeriodicTrigger) for one in chain(cb))}
        self._due: dict[Callback, int] = {}  # the steps that callbacks requested
        self.watchers: dict[Callback, Collection[str]] = {}
        self._set_up: list[Callback] = []
        self._used: set[Callback] = set()  # callbacks with the state of another trainer's run
        self._restored: set[Callback] = set()  # callbacks whose state was in the checkpoint
        self._stepped = False  # whether this run has completed a step or called callbacks of the restored one
        self._begun_at = -1  # the step of the last `before_epoch`
        self._done: set[tuple[str, str]] = set()  # labels and hooks of the calls since the last step; each is made once
        self._outer = sys.exception()  # an unrelated error that the caller may be handling
        self.unfinished = self.watching = self.has_ended = False
        self.stop_training: StopTraining | None = None
        self.failure: BaseException | None = None
        self._seconds = dict.fromkeys(self.callbacks, 0.0)

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def of_class(self, kind: type[T]) -> list[T]:
        """Return the callbacks of a class, without the proxies around them."""
        return [one for one in map(innermost, self.callbacks) if isinstance(one, kind)]

    @property
    def watched_names(self) -> set[str]:
        """Names of the tensors that callbacks read after their steps."""
        return set().union(*self.watchers.values())

    @property
    def each_step(self) -> bool:
        """Whether a callback runs after every step."""
        return any(map(_runs_each_step, self._scheduled))

    def setup(self) -> None:
        """Set the trainer of every callback and call `setup`."""
        self._trainer.monitors.attach(self.of_class(Monitor))
        for callback in self.callbacks:
            earlier = vars(innermost(callback)).get("trainer", self._trainer)
            if earlier is not self._trainer and earlier.global_step and callback.overrides("state_dict"):
                self._used.add(callback)
            callback.trainer = self._trainer
            self._call(callback, "setup", at_start=True)
            self._set_up.append(callback)
            self._trainer.stop.check()
        self.watchers = {callback: names for callback in self.callbacks if (names := callback.watches()) is not None}

    def check(self) -> None:
        """Call `check_run` of all callbacks, unless no step is left to do."""
        for callback in self._used - self._restored:
            raise CallbackError(f"{callback!r} has the state of another trainer's run; make a new one for this run")
        for callback in [] if self._trainer.run.has_nothing_to_do else self._overriding["check_run"]:
            self._call(callback, "check_run", at_start=True)
            self._trainer.stop.check()

    def before_train(self) -> None:
        """Call `before_train` of all callbacks."""
        self._run("before_train", self._overriding["before_train"])

    def after_train(self) -> None:
        """Call `after_train` on every callback that was set up, then raise the first error of these calls.

        If the run itself failed, the errors become notes of its error.
        """
        of_run = self.failure = None if sys.exception() is self._outer else sys.exception()
        self.has_ended = True
        for callback in self._set_up:
            try:
                self._call(callback, "after_train")
            except StopTraining:
                continue  # the run ends anyway
            except BaseException as error:
                if self.failure is None:
                    self.failure = error
                else:
                    text = f"after_train of {callback.name} failed as well: {type(error).__name__}: {error}"
                    self.failure.add_note(text)
                    self._trainer.log(text)
        self._set_up = []
        if self.failure is not None and of_run is None:
            raise self.failure

    def before_run(self) -> None:
        """Call `before_run` of all callbacks while the step is traced or, in plain Python, before each step."""
        for callback in self._overriding["before_run"]:
            with _naming(callback, "before_run"):
                callback.before_run()

    def after_run(self, outputs: dict[str, Any]) -> None:
        """Call `after_run` of all callbacks while the step is traced or, in plain Python, after each step."""
        for callback in self._overriding["after_run"]:
            with _naming(callback, "after_run"):
                callback.after_run(outputs)

    def after_steps(self, scalars: Mapping[str, Sequence[Any]]) -> None:
        """Call `after_steps` of all callbacks, also if one fails; raises the first error at the end."""
        self._done.clear()
        self._stepped = self.unfinished = True
        failure: Exception | None = None
        for callback in self._overriding["after_steps"]:
            try:
                with _naming(callback, "after_steps"), self._trainer.monitors.recorded_by(self._labels[callback]):
                    callback.after_steps(scalars)
            except StopTraining as request:
                self.stop_training = self.stop_training or request
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def before_epoch(self) -> None:
        """Call `before_epoch` of all callbacks.

        A run that is resumed within an epoch calls only the callbacks without state in the checkpoint and undoes their
        changes to the trainer's state, which the checkpoint already holds.
        """
        step, due = self._trainer.counter.step, self._overriding["before_epoch"]
        if self._trainer.local_step == 0 and step != self._begun_at:
            self._begun_at = step
            self._run("before_epoch", due)
            return
        with self._trainer.run.undoing_changes():
            self._run("before_epoch", [callback for callback in due if callback not in self._restored])

    def next_step(self, after: int | None = None) -> int:
        """Return the nearest step that a callback requests, at most the end of the epoch or of the run."""
        step = self._trainer.counter.step if after is None else after
        self._due = {}
        end = nearest = self._trainer.run.next_boundary
        for callback in self._scheduled:
            due = callback.next_step(step)
            if due is None:
                continue
            if not isinstance(due, Integral) or due <= step:
                raise CallbackError(f"{callback.name}.next_step({step}) returned {due!r}, not an int after {step}")
            self._due[callback] = due
            nearest = min(nearest, due)
        if self.watchers:
            watching = [callback for callback, due in self._due.items() if due == nearest]
            if nearest == end:
                watching += [callback for callback in self._by_epoch if callback not in self._periodic]
            self.watching = any(callback in self.watchers for callback in watching)
        return nearest

    def trigger_step(self, *, is_repeated: bool = False) -> None:
        """Run the callbacks that requested the current step; if `is_repeated`, those that a checkpoint has not."""
        if not is_repeated:
            self._done.clear()
        step = self._trainer.counter.step
        self._stepped = self.unfinished = True
        is_within_epoch = step < self._trainer.run.next_boundary
        due = [
            callback
            for callback, requested in self._due.items()
            if requested == step and (is_within_epoch or callback not in self._periodic)
        ]
        self._run("trigger_step", due, completes_step=is_within_epoch)

    def repeat_step(self) -> None:
        """Run the callbacks of the restored step that had not run when it was saved."""
        if self.unfinished:
            self.next_step(self._trainer.counter.step - 1)
            self.trigger_step(is_repeated=True)

    def after_epoch(self) -> None:
        """Call `after_epoch`. If the run ends within the epoch, skip callbacks whose `at_end` is False."""
        due = self._overriding["after_epoch"]
        self._run("after_epoch", [callback for callback in due if self._is_due_at_end(callback)])

    def trigger_epoch(self) -> None:
        """Run the callbacks that are due at the end of an epoch or of the run."""
        step, self.unfinished = self._trainer.counter.step, True
        due = [
            callback
            for callback in self._by_epoch
            if (callback.next_step(step - 1) == step if callback in self._periodic else self._is_due_at_end(callback))
        ]
        self._run("trigger_epoch", due, completes_step=True)

    def trigger_last(self) -> None:
        """Run the callbacks that are due when a run ends early. `total_steps` must already be the current step."""
        if not self._stepped and not self.unfinished:
            return
        for hook in (self.after_epoch if self._stepped else self.repeat_step, self.trigger_epoch):
            with suppress(StopTraining):
                hook()

    def _is_due_at_end(self, callback: Callback) -> bool:
        """Return whether a callback runs at the end of the epoch, which may be cut short by the end of the run."""
        return callback.at_end or self._trainer.local_step == self._trainer.steps_per_epoch

    def _run(self, hook: str, callbacks: Sequence[Callback], *, completes_step: bool = False) -> None:
        """Call a hook of several callbacks. With `completes_step`, no other callbacks of this step follow.

        If a callback raises StopTraining, the remaining callbacks still run before the run ends, so scalars are written
        and the checkpoint is saved. A checkpoint written in between counts the remaining callbacks as done if they only
        save.
        """
        stop, self.stop_training = self.stop_training, None
        is_before = hook.startswith("before")
        at_start = is_before and not self._stepped
        calls = [(one, call) for one in callbacks if (call := self._call_of(one, hook)) not in self._done or is_before]
        last = max((i for i, (one, _) in enumerate(calls) if one.priority < Priority.SAVE), default=-1)
        for index, (callback, call) in enumerate(calls):
            if completes_step:
                self.unfinished = index < last
            self._done.add(call)
            try:
                self._call(callback, hook, at_start=at_start)
            except StopTraining as request:
                stop = stop or request
            except BaseException:
                self._begun_at = -1 if hook == "before_epoch" else self._begun_at
                self._done.discard(call)
                self.unfinished = self.unfinished or not is_before
                raise
            if at_start:
                self._trainer.stop.check()
        if completes_step:
            self.unfinished = False
        self._trainer.monitors.flush()
        if stop is not None:
            raise stop

    def _call_of(self, callback: Callback, hook: str) -> tuple[str, str]:
        """Return the entry of a call in `_done`. A periodic callback triggers once per step, in either hook."""
        is_trigger = callback in self._periodic and hook.startswith("trigger")
        return self._labels[callback], "trigger" if is_trigger else hook

    def _call(self, callback: Callback, hook: str, *, at_start: bool = False) -> None:
        """Call one hook and measure its time.

        Errors, stop messages and recorded scalars are attributed to the callback.
        """
        trainer, label = self._trainer, self._labels[callback]
        begin = time.perf_counter()
        try:
            with (
                _naming(callback, hook),
                announcing(f"{hook} of {label}", trainer.log) if at_start else nullcontext(),
                trainer.monitors.recorded_by(label),
            ):
                getattr(callback, hook)()
        finally:
            self._seconds[callback] += time.perf_counter() - begin

    def state_dict(self) -> dict[str, Any]:
        """Return the callbacks' states by key, and the progress within the current step and epoch."""
        with announcing("collecting the callbacks' states", self._trainer.log):
            states = {key: callback.state_dict() for key, callback in self.by_key.items()}
        return {
            "states": states,
            "unfinished": self.unfinished,
            "done": sorted(self._done) if self.unfinished else [],
            "epoch_begun_at": self._begun_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the callbacks whose state is in the checkpoint."""
        for key, callback in self.by_key.items():
            if key in state["states"]:
                try:
                    callback.load_state_dict(state["states"][key])
                except Exception as error:
                    text = f"{type(error).__name__}: {error}"
                    raise CheckpointError(f"the state of {key} cannot be restored: {text}") from error
                if callback.overrides("state_dict"):
                    self._restored.add(callback)
        self.unfinished, self._done = bool(state["unfinished"]), set(map(tuple, state["done"]))
        self._begun_at = int(state["epoch_begun_at"])

    def times(self) -> dict[str, float]:
        """Return the seconds spent in each callback, by name, longest first."""
        longest = sorted(self._seconds.items(), key=lambda item: -item[1])
        return {self._labels[callback]: taken for callback, taken in longest}


@contextmanager
def _naming(callback: Callback, hook: str) -> Iterator[None]:
    """Add the names of the hook and the callback to errors."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, StopTraining):
            error.add_note(f"in {hook} of {callback.name}")
        raise


def _runs_each_step(callback: Callback) -> bool:
    if isinstance(callback, PeriodicTrigger):
        return callback.intervals.get("steps") == 1
    return callback.overrides("trigger_step") and not callback.overrides("next_step")


def as_list(callbacks: Iterable[Callback], error: str = "the callbacks must be a list") -> list[Callback]:
    """Return callbacks as a list; raise a CallbackError, which begins with `error`, if one is not a callback."""
    if not isinstance(callbacks, Iterable):
        raise CallbackError(f"{error}, not {callbacks!r}; use [] for none")
    found = list(callbacks)
    for callback in found:
        if not isinstance(callback, Callback):
            hint = "; wrap it in KerasCallback(...)" if hasattr(callback, "on_epoch_end") else ""
            raise CallbackError(f"not a callback: {callback!r}{hint}")
        if not isinstance(callback, Monitor) and not any(map(callback.overrides, HOOKS)):
            raise CallbackError(f"{callback!r} overrides no hook of Callback and would do nothing; is a name misspelt?")
        if sum(other is callback for other in found) > 1:
            raise CallbackError(f"{callback!r} is in the list twice; make a second one")
    return found


def _labels(callbacks: Iterable[Callback]) -> dict[Callback, str]:
    """Return a unique label for each callback, such as "Validation" and "Validation 2"."""
    seen: Counter[str] = Counter()
    found: dict[Callback, str] = {}
    for callback in callbacks:
        seen[callback.name] += 1
        found[callback] = callback.name if seen[callback.name] == 1 else f"{callback.name} {seen[callback.name]}"
    return found


def _by_state_key(callbacks: Iterable[Callback]) -> dict[str, Callback]:
    """Map state keys to the callbacks that have state or an explicit key."""
    keys: dict[str, Callback] = {}
    for callback in callbacks:
        if callback.state_key is not None or callback.overrides("state_dict"):
            key = callback.state_key or callback.name
            other = keys.setdefault(key, callback)
            if other is not callback:
                raise CallbackError(f"{other!r} and {callback!r} both save {key!r}; give one of them another state_key")
    return keys
