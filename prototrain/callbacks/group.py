"""Calls a list of callbacks: in which order, with which failures, and how long each of them takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.agenda import HOOKS, Agenda
from prototrain.callbacks.base import Callback
from prototrain.callbacks.describe import describe
from prototrain.callbacks.listing import checked, labels, state_keys
from prototrain.callbacks.monitor import Monitor
from prototrain.callbacks.proxies import innermost, runs_code_of_user
from prototrain.checkpoint.state import taking
from prototrain.errors import StopTraining
from prototrain.step.python_summaries import PythonSummaries
from prototrain.system.forks import tell_of_forks
from prototrain.system.signals import AFTER_STEP
from prototrain.system.tracebacks import note_hook
from prototrain.system.waiting import announcing

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class CallbackGroup:
    """The callbacks of one run, ordered by priority, then as they stand in the list.

    It calls them; its `Agenda` says which of them, and remembers who has still to run for the present step.

    Args:
        trainer: what the callbacks belong to.
        callbacks: the user's list.

    Raises:
        CallbackError: something in the list is not a callback, or two callbacks would share their saved state.
    """

    def __init__(self, trainer: Trainer, callbacks: Iterable[Callback] = ()) -> None:
        self._trainer = trainer
        mine = [callback for callback in checked(callbacks) if trainer.is_chief or not callback.chief_only]
        self.callbacks = sorted(mine, key=lambda callback: callback.priority)
        self._state_keys = state_keys(self.callbacks)
        self._labels = labels(self.callbacks)
        self._agenda = Agenda(trainer, self._labels)
        self._of_user = {callback for callback in self.callbacks if runs_code_of_user(callback)}
        self._set_up: list[Callback] = []
        self._stepped = False
        self._outer = sys.exception()  # what the caller is handling, which is no failure of this run
        self.has_ended = False  # whether `after_train` has begun
        self.late_failure: BaseException | None = None  # what an `after_train` has failed with first
        self.failure: BaseException | None = None  # what has ended the run, for those that `after_train` calls
        self._watchers: dict[Callback, Collection[str]] = {}
        self.summaries = PythonSummaries(trainer.log)  # what the callbacks themselves give to tf.summary
        self.watching = False  # whether the step that `next_step` named last is watched
        self.seconds: dict[Callback, float] = dict.fromkeys(self.callbacks, 0.0)
        tell_of_forks(self)

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def __len__(self) -> int:
        return len(self.callbacks)

    @property
    def watched_names(self) -> set[str]:
        """The tensors that callbacks want to see of the steps after which they run."""
        return set().union(*self._watchers.values())

    @property
    def has_watchers(self) -> bool:
        """Whether some callback wants to see more of a step than its scalars."""
        return bool(self._watchers)

    @property
    def state_keys(self) -> list[str]:
        """What the states of callbacks are called in a checkpoint."""
        return sorted(self._state_keys)

    @property
    def each_step(self) -> bool:
        """Whether some callback runs after every single step."""
        return self._agenda.each_step

    # -- around the run ---------------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Give every callback its trainer and let it prepare."""
        inner = map(innermost, self.callbacks)
        self._trainer.monitors.attach(callback for callback in inner if isinstance(callback, Monitor))
        for callback in self.callbacks:
            callback.trainer = self._trainer
            with (
                self._timed(callback, "setup", records=False),
                self._told("setup", callback),
            ):  # no monitor is set up yet
                callback.setup()
            self._set_up.append(callback)
            self._trainer.stop.check()
        self._watchers = {callback: names for callback in self.callbacks if (names := callback.watches()) is not None}

    def check(self) -> None:
        """Let callbacks check, after a restore and before the run writes anything, that they can do their work."""
        for callback in self.callbacks:
            if callback.overrides("check_run"):
                with self._timed(callback, "before_train"), self._told("before_train", callback):
                    callback.check_run()
                self._trainer.stop.check()

    def before_train(self) -> None:
        """Call `before_train` of all, also where one of them finds that there is nothing more to train."""
        stop: StopTraining | None = None
        for callback in self.callbacks:
            if callback.overrides("before_train"):
                try:
                    with self._timed(callback, "before_train"), self._told("before_train", callback):
                        callback.before_train()
                except StopTraining as request:
                    stop = stop or request
                self._trainer.stop.check()
        self._trainer.monitors.flush()
        if stop is not None:
            raise stop

    def after_train(self) -> None:
        """Call `after_train` on every callback that was set up, whatever fails, then let the first failure go on."""
        failure = self.failure = None if sys.exception() is self._outer else sys.exception()
        self.has_ended, self.late_failure = True, None
        for callback in self._set_up:
            try:
                with self._timed(callback, "after_train"):
                    callback.after_train()
            except StopTraining:
                continue  # which it is anyway
            except BaseException as error:
                worst = failure or self.late_failure
                if worst is None:
                    self.late_failure = error
                else:
                    worst.add_note(f"after_train of {callback.name} failed as well: {type(error).__name__}: {error}")
                    self._trainer.log(f"after_train of {callback.name} failed: {type(error).__name__}: {error}")
        self._set_up = []
        if self.late_failure is not None:
            raise self.late_failure

    def after_fork(self) -> None:
        """Call nothing at the end of a forked child: the run, and what its end saves, is the parent's."""
        self._set_up = []

    def before_epoch(self) -> None:
        """Run `before_epoch` of those for which this epoch has not begun, in this run or the one that it resumes."""
        self._agenda.open_epoch()
        if self._agenda.phase == "before_epoch":
            self._run_pending()

    def after_epoch(self) -> None:
        """Run `after_epoch` of those for which this epoch is not over."""
        self._agenda.close_epoch()
        if self._agenda.phase == "after_epoch":
            self._run_pending()

    # -- along with the iterations ----------------------------------------------------------------------------------

    def before_run(self) -> None:
        for callback in self.callbacks:
            if callback.overrides("before_run"):
                with _noting(callback, "before_run"):
                    callback.before_run()

    def after_run(self, outputs: dict[str, Any]) -> None:
        for callback in self.callbacks:
            if callback.overrides("after_run"):
                with _noting(callback, "after_run"):
                    callback.after_run(outputs)

    # -- after steps and epochs -------------------------------------------------------------------------------------

    def next_step(self) -> int:
        """Ask every callback for its next step.

        Returns:
            the nearest one, at most the end of the epoch or of the run.

        Raises:
            CallbackError: a callback named a step that is over.
        """
        step, due_then = self._agenda.ask()
        self.watching = any(callback in self._watchers for callback in due_then)
        return step

    def trigger_step(self) -> None:
        """Run `trigger_step` of the callbacks that asked for this step."""
        if not self._stepped:
            self._stepped = True
            self._trainer.monitors.foreseen.check_outputs()
        self._agenda.begin_step()
        self._run_pending()

    def trigger_epoch(self) -> None:
        """Run `trigger_epoch` of every callback (of those left, where a resumed run was stopped amid them)."""
        self._run_pending()

    def trigger_last(self) -> None:
        """Run what is due at the end of a run, where it has ended ahead of its end; `total_steps` says so by now."""
        if self._stepped:
            if self._agenda.phase is None and self._agenda.epoch == "ahead":
                self._agenda.begin_end()
            self._agenda.close_epoch()
        elif not self.unfinished:  # a resumed run has still to call those that the checkpoint says had not run
            return
        while self._agenda.phase is not None:
            with suppress(StopTraining):
                self._run_pending()

    def finish_step(self) -> None:
        """Complete the step that a restored checkpoint was taken in: run the callbacks that it had not run yet."""
        for callback in self._agenda.to_prepare:
            kept = self._trainer.session.preparing()
            with self._timed(callback, "before_epoch"), self._told("before_epoch", callback), kept:
                callback.before_epoch()
            self._trainer.stop.check()
        self._agenda.to_prepare = ()
        while self.unfinished and (self._agenda.phase == "step" or not self._agenda.epoch_is_over):
            self._run_pending()

    @property
    def unfinished(self) -> bool:
        """Whether callbacks of the current step have still to run."""
        return self._agenda.phase not in (None, "before_epoch")

    @property
    def has_still_to_see(self) -> bool:
        """Whether callbacks that look at more of the current step than its scalars have still to run."""
        return any(callback in self._watchers for callback in self._agenda.left)

    def _run_pending(self) -> None:
        """Run what the current phase has left. A stop between two of them leaves the rest pending.

        A callback that raises StopTraining does not keep the others from this step: its scalars are still written and
        its checkpoint is still saved, then the run ends.
        """
        stop: StopTraining | None = None
        hook = HOOKS.get(self._agenda.phase or "", "")
        while (callback := self._agenda.current) is not None:
            self._trainer.stop.check()
            self._agenda.is_running = True
            is_of_start = hook == "before_epoch" and not self._stepped
            try:
                running = self._told(hook, callback) if is_of_start else self._run(hook, callback, AFTER_STEP)
                with self._timed(callback, hook), running:
                    getattr(callback, hook)()
            except StopTraining as request:
                stop = stop or request
            finally:
                self._agenda.is_running = False
            self._agenda.done()
        self._agenda.end_phase()
        self._trainer.monitors.flush()
        if stop is not None:
            raise stop

    # -- what a checkpoint holds ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The callbacks' states by key, and the agenda's: who has still to run for the current step."""
        with announcing("asking the callbacks for their states", self._trainer.log):
            states = {key: callback.state_dict() for key, callback in self._state_keys.items()}
        return {"states": states, **self._agenda.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give every callback its state back, if the checkpoint has one of it."""
        states: dict[str, dict[str, Any]] = state["states"]
        for key, callback in self._state_keys.items():
            if key in states:
                with taking(f"the state of {key}"):
                    callback.load_state_dict(states[key])
        self._agenda.load_state_dict(state)

    def describe(self) -> str:
        """Who runs when, in which order, as a table."""
        return describe(self.callbacks)

    # -- time -------------------------------------------------------------------------------------------------------

    def times(self) -> dict[str, float]:
        """The seconds that each callback has taken, by name, the longest first."""
        longest = sorted(self.seconds.items(), key=lambda item: -item[1])
        return {self._labels[callback]: taken for callback, taken in longest}

    @contextmanager
    def _told(self, hook: str, callback: Callback) -> Iterator[None]:
        """Say what a callback is doing, if it takes long, and what a stop waits for meanwhile."""
        what = f"{hook} of {self._labels[callback]}"
        with announcing(what, self._trainer.log), self._trainer.stop.waiting_for(what), self._run(hook, callback):
            yield

    def _run(self, hook: str, callback: Callback, when: str | None = None) -> AbstractContextManager[None]:
        """Name what a stop waits for; code of the user's it ends, if that does not end by itself."""
        what = f"{hook} of {self._labels[callback]}"
        return self._trainer.stop.waiting_for(what, when=when, interruptible=callback in self._of_user)

    @contextmanager
    def _timed(self, callback: Callback, hook: str, *, records: bool = True) -> Iterator[None]:
        """Take a callback's own time, and what it gives to `tf.summary`; its scalars and errors bear its name."""
        begin = time.perf_counter()
        try:
            with _noting(callback, hook), self._trainer.monitors.recorded_by(self._labels[callback]):
                with self.summaries.recording(self._trainer.counter.step) if records else nullcontext():
                    yield
                for event in self.summaries.take():
                    self._trainer.monitors.put_summary(event.summary)
        finally:
            self.seconds[callback] += time.perf_counter() - begin


@contextmanager
def _noting(callback: Callback, hook: str) -> Iterator[None]:
    """Note on an error which hook of which callback it came from."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, StopTraining):
            note_hook(error, hook, callback.name)
        raise
