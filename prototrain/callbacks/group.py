"""Runs a list of callbacks: order, schedule, failures, and how long each of them takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Callback
from prototrain.callbacks.describe import describe
from prototrain.callbacks.listing import checked, labels, state_keys
from prototrain.callbacks.monitor import Monitor
from prototrain.callbacks.proxies import innermost, periodic_trigger, runs_each_step
from prototrain.callbacks.trigger import PeriodicTrigger
from prototrain.checkpoint.state import taking
from prototrain.errors import CallbackError, StopTraining

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class CallbackGroup:
    """The callbacks of one run, ordered by priority, then by their place in the list.

    The group remembers which callbacks have still to run for the current step, so that a checkpoint taken in between
    says so and a resumed run completes the step first.

    Args:
        trainer: what the callbacks belong to.
        callbacks: the user's list.
        clock: returns the time in seconds.

    Raises:
        CallbackError: something in the list is not a callback, or two callbacks would share their saved state.
    """

    def __init__(
        self, trainer: Trainer, callbacks: Iterable[Callback] = (), *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._trainer = trainer
        self._clock = clock
        mine = [callback for callback in checked(callbacks) if trainer.is_chief or not callback.chief_only]
        self.callbacks = sorted(mine, key=lambda callback: callback.priority)
        self._state_keys = state_keys(self.callbacks)
        self._labels = labels(self.callbacks)
        self._scheduled = [cb for cb in self.callbacks if cb.overrides("trigger_step") or cb.overrides("next_step")]
        self._by_epoch = [cb for cb in self.callbacks if cb.overrides("trigger_epoch") or cb.overrides("trigger")]
        self._set_up: list[Callback] = []
        self._asked: list[tuple[Callback, int]] = []
        self._pending: list[Callback] = []
        self._phase: str | None = None  # "step" or "epoch" while callbacks of that hook have still to run
        self._running = False
        self._stepped = False
        self._in_epoch = False
        self._outer = sys.exception()  # what the caller is handling, which is no failure of this run
        self._started = 0.0
        self._watchers: dict[Callback, Collection[str]] = {}
        self.watching = False  # whether the step that `next_step` named last is watched
        self.seconds: dict[Callback, float] = dict.fromkeys(self.callbacks, 0.0)

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def __len__(self) -> int:
        return len(self.callbacks)

    @property
    def watched_names(self) -> set[str]:
        """The tensors that callbacks want to see of the steps after which they run."""
        return set().union(*self._watchers.values())

    @property
    def each_step(self) -> bool:
        """Whether some callback runs after every single step."""
        return any(map(runs_each_step, self._scheduled))

    # -- around the run ---------------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Give every callback its trainer and let it prepare."""
        self._started = self._clock()
        inner = map(innermost, self.callbacks)
        self._trainer.monitors.listeners = [callback for callback in inner if isinstance(callback, Monitor)]
        for callback in self.callbacks:
            callback.trainer = self._trainer
            with self._timed(callback):
                callback.setup()
            self._set_up.append(callback)
        self._watchers = {callback: names for callback in self.callbacks if (names := callback.watches()) is not None}

    def before_train(self) -> None:
        self._run_all("before_train")
        self._trainer.monitors.flush()

    def after_train(self) -> None:
        """Call `after_train` on every callback that was set up, whatever fails, then let the first failure go on."""
        failure = None if sys.exception() is self._outer else sys.exception()
        first: BaseException | None = None
        for callback in self._set_up:
            try:
                with self._timed(callback):
                    callback.after_train()
            except StopTraining:
                continue  # which it is anyway
            except BaseException as error:
                worst = failure or first
                if worst is None:
                    first = error
                else:
                    worst.add_note(f"after_train of {callback.name} failed as well: {type(error).__name__}: {error}")
                    self._trainer.log(f"after_train of {callback.name} failed: {type(error).__name__}: {error}")
        self._set_up = []
        if first is not None:
            raise first

    def before_epoch(self) -> None:
        self._in_epoch = True
        self._run_all("before_epoch")

    def after_epoch(self) -> None:
        self._in_epoch = False
        self._run_all("after_epoch")

    # -- along with the iterations ----------------------------------------------------------------------------------

    def before_run(self) -> None:
        for callback in self.callbacks:
            if callback.overrides("before_run"):
                callback.before_run()

    def after_run(self, outputs: dict[str, Any]) -> None:
        for callback in self.callbacks:
            if callback.overrides("after_run"):
                callback.after_run(outputs)

    # -- after steps and epochs -------------------------------------------------------------------------------------

    def next_step(self) -> int:
        """Ask every callback for its next step.

        Returns:
            the nearest one, at most the end of the epoch or of the run.

        Raises:
            CallbackError: a callback named a step that is over.
        """
        trainer = self._trainer
        step = trainer.global_step
        self._asked = []
        end = nearest = min(step - trainer.local_step + trainer.steps_per_epoch, trainer.total_steps)
        for callback in self._scheduled:
            due = callback.next_step(step)
            if due is None:
                continue
            if due <= step:
                raise CallbackError(
                    f"{callback.name}.next_step({step}) returned {due!r}, which is not after step {step}"
                )
            self._asked.append((callback, due))
            nearest = min(nearest, due)
        due_then = [callback for callback, due in self._asked if due == nearest]
        if nearest == end:  # periodic ones have said what they want of the end of an epoch
            due_then += [callback for callback in self._by_epoch if not isinstance(callback, PeriodicTrigger)]
        self.watching = any(callback in self._watchers for callback in due_then)
        return nearest

    def trigger_step(self) -> None:
        """Run `trigger_step` of the callbacks that asked for this step."""
        self._stepped = True
        step = self._trainer.global_step
        self._begin("step", [callback for callback, due in self._asked if due == step])
        self._run_pending()

    def trigger_epoch(self) -> None:
        """Run `trigger_epoch` of every callback (of those left, where a resumed run was stopped amid them)."""
        if self._phase != "epoch":
            self._begin("epoch", self._due_by_epoch())
        self._run_pending()

    def trigger_last(self) -> None:
        """End the run here, ahead of its end: what is due at the end of a run is due now."""
        if not self._stepped:
            return
        self._trainer.total_steps = self._trainer.global_step
        with suppress(StopTraining):
            self._run_pending()
        between = self._phase is None and (not self._in_epoch or self._trainer.local_step == 0)
        if self._in_epoch:
            self.after_epoch()
        if between:  # an epoch's callbacks have run; what only the end of the run makes due has not
            self._begin("epoch", [callback for callback in self._by_epoch if periodic_trigger(callback) is not None])
        with suppress(StopTraining):
            self.trigger_epoch()

    def finish_step(self) -> None:
        """Complete the step that a restored checkpoint was taken in: run the callbacks that it had not run yet."""
        if self._phase == "step" or not self._epoch_is_over():
            self._run_pending()

    @property
    def unfinished(self) -> bool:
        """Whether callbacks of the current step have still to run."""
        return self._phase is not None

    def _epoch_is_over(self) -> bool:
        # The last epoch of a run may be cut short.
        trainer = self._trainer
        return trainer.local_step == trainer.steps_per_epoch or trainer.global_step >= trainer.total_steps

    def _due_by_epoch(self) -> list[Callback]:
        """Those that run after an epoch; after one that the run's end cuts short, only those that say so."""
        if self._trainer.local_step == self._trainer.steps_per_epoch:
            return self._by_epoch
        return [callback for callback in self._by_epoch if callback.at_end or periodic_trigger(callback) is not None]

    def _begin(self, phase: str, callbacks: list[Callback]) -> None:
        self._phase = phase
        self._pending = list(callbacks)

    def _run_pending(self) -> None:
        """Run what the current phase has left. A stop between two of them leaves the rest pending.

        A callback that raises StopTraining does not keep the others from this step: its scalars are still written and
        its checkpoint is still saved, then the run ends.
        """
        stop: StopTraining | None = None
        while self._pending:
            self._trainer.stop.check()
            callback = self._pending[0]
            try:
                self._running = True
                with self._timed(callback):
                    callback.trigger_step() if self._phase == "step" else callback.trigger_epoch()
            except StopTraining as request:
                stop = stop or request
            finally:
                self._running = False
            self._pending.pop(0)
        if self._phase == "step" and self._epoch_is_over():
            self._begin("epoch", self._due_by_epoch())
        else:
            self._phase = None
        self._trainer.monitors.flush()
        if stop is not None:
            raise stop

    # -- what a checkpoint holds ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The callbacks' states by key, and which callbacks have still to run for the current step.

        A callback that saves is done with its step; one that failed is not, and runs again after a resume.
        """
        pending = self._pending[1:] if self._running else self._pending
        triggers = [(callback, periodic_trigger(callback)) for callback in self.callbacks if callback not in pending]
        step = self._trainer.global_step
        return {
            "states": {key: callback.state_dict() for key, callback in self._state_keys.items()},
            "phase": self._phase,
            "pending": [self._labels[callback] for callback in pending],
            "fired": [self._labels[callback] for callback, trigger in triggers if trigger and trigger.fired_at(step)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Give every callback its state back.

        Returns:
            what does not fit, in words: callbacks that the checkpoint has no state of, states of no callback, and what
            callbacks say of theirs.
        """
        states: dict[str, dict[str, Any]] = state["states"]
        for key, callback in self._state_keys.items():
            if key in states:
                with taking(f"the state of {key}"):
                    callback.load_state_dict(states[key])
        by_label = {label: callback for callback, label in self._labels.items()}
        self._phase = {None: None, "step": "step", "epoch": "epoch"}[state["phase"]]
        self._pending = [by_label[label] for label in state["pending"] if label in by_label]
        for label in state["fired"]:
            trigger = periodic_trigger(by_label[label]) if label in by_label else None
            if trigger is not None:
                trigger.mark_fired()
        new = [f"{key} starts without a saved state" for key in self._state_keys if key not in states]
        gone = [f"the saved state of {key} is not used" for key in states if key not in self._state_keys]
        lost = [line for callback in self.callbacks for line in callback.resume_caveats()]
        return new + gone + lost

    def describe(self) -> str:
        """Who runs when, in which order, as a table."""
        return describe(self.callbacks)

    # -- time -------------------------------------------------------------------------------------------------------

    def times(self) -> dict[str, float]:
        """The seconds that each callback has taken, by name, the longest first."""
        longest = sorted(self.seconds.items(), key=lambda item: -item[1])
        return {self._labels[callback]: taken for callback, taken in longest}

    def _run_all(self, hook: str) -> None:
        for callback in self.callbacks:
            if callback.overrides(hook):
                with self._timed(callback):
                    getattr(callback, hook)()

    @contextmanager
    def _timed(self, callback: Callback) -> Iterator[None]:
        begin = self._clock()
        try:
            yield
        finally:
            self.seconds[callback] += self._clock() - begin
