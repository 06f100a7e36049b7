"""Callbacks that save checkpoints: at intervals, at the best value of a scalar, and at the end of a run."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prototrain.callbacks.base import Callback, PeriodicTrigger, Priority, innermost
from prototrain.callbacks.monitor import Best, Mode
from prototrain.errors import CallbackError, CheckpointError, NonFiniteError
from prototrain.system.files import write_atomic
from prototrain.system.wording import in_words

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_DAY = 86400.0
_FAILURES_PER_DAY = 0.03  # by default, about one in a month
_FIRST_SECONDS = 60.0  # before the first save, whose cost is not known
_WORTH_REPORTING = 1.5  # the change of the interval


class ModelSaver(Callback):
    """Writes a checkpoint and deletes all but the newest ones. A failed save is reported, and training continues.

        ModelSaver(max_to_keep=3).every(steps=1000)
        ModelSaver(interval="auto")

    Args:
        max_to_keep: how many checkpoints stay.
        asynchronous: continue training while the files are written. A process that is killed during that has the
            checkpoint before; a failure is reported at the next save.
        interval: "auto" for the interval at which saving and repeating lost steps cost least together, by Young and
            Daly: ``sqrt(2 * cost * failure_seconds)``, with the measured cost of a save. Then there is no `every`; the
            end of the run counts as due.
        failures_per_day: how often each worker (the process, if there is only one) is expected to fail, for "auto";
            0.03 if None.
        clock: returns the time in seconds, for "auto".

    Raises:
        CallbackError: `max_to_keep` is below 1, `failures_per_day` is not positive, or `interval` is something else.
    """

    priority = Priority.SAVE

    def __init__(
        self,
        *,
        max_to_keep: int = 5,
        asynchronous: bool = False,
        interval: Literal["auto"] | None = None,
        failures_per_day: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_to_keep < 1:
            raise CallbackError(f"ModelSaver: max_to_keep must be at least 1, got {max_to_keep}")
        if failures_per_day is not None and (interval is None or not failures_per_day > 0):
            raise CallbackError(
                f'ModelSaver: failures_per_day must be positive, and is for interval="auto"; got {failures_per_day}'
            )
        if interval not in (None, "auto"):
            raise CallbackError(f'ModelSaver: interval must be "auto", got {interval!r}; else use .every(steps=...)')
        self.max_to_keep = max_to_keep
        self.asynchronous = asynchronous
        self._is_auto = interval == "auto"
        self._failure_seconds = _DAY / (_FAILURES_PER_DAY if failures_per_day is None else failures_per_day)
        self._clock = clock
        self._costs: deque[float] = deque(maxlen=5)
        self._reported = math.inf  # the last interval
        self._under_way: Callable[[], Path] | None = None

    def overrides(self, hook: str) -> bool:
        return super().overrides(hook) and (self._is_auto or hook not in ("next_step", "trigger_step"))

    def every(self, **intervals: Any) -> PeriodicTrigger:
        if self._is_auto:
            raise CallbackError('ModelSaver: interval="auto" is an interval already, so that .every() has no place')
        return super().every(**intervals)

    def setup(self) -> None:
        self.trainer.require_experiment("ModelSaver")
        self.trainer.run.max_to_keep = max(self.max_to_keep, self.trainer.run.max_to_keep or 0)

    def before_train(self) -> None:
        self._timer = PeriodicTrigger(self, every_n_seconds=_FIRST_SECONDS, clock=self._clock)  # for "auto"
        self._timer.trainer = self.trainer

    def next_step(self, step: int) -> int | None:
        return self._timer.next_step(step)

    def trigger_step(self) -> None:
        self._timer.trigger_step()

    def trigger_epoch(self) -> None:
        if self._is_auto:
            self._timer.trigger_epoch()
        else:
            self.trigger()

    def trigger(self) -> None:
        begin = self._clock()
        if self._is_auto:
            self.trainer.monitors.put_scalar("checkpoint/interval", self._timer.intervals["seconds"])
        self._save()
        if self._is_auto:
            self._timer.intervals["seconds"] = self._best_interval(self._clock() - begin)

    def _best_interval(self, cost: float) -> float:
        """The interval after a save that has held up the training for `cost` seconds."""
        self._costs.append(cost)
        cost, workers = statistics.median(self._costs), self.trainer.workers
        failure_seconds = self._failure_seconds / workers
        seconds = max(math.sqrt(2 * cost * failure_seconds), cost)
        if not 1 / _WORTH_REPORTING < seconds / self._reported < _WORTH_REPORTING:
            self._reported = seconds
            self.trainer.log(
                f"saving every {in_words(seconds)}: a save holds up the training for {cost:.2g} s, and a failure is "
                f"expected every {in_words(failure_seconds)} ({workers} worker{'s' * (workers > 1)})"
            )
        return seconds

    def _save(self) -> None:
        self._finish()
        try:
            self._under_way = self.trainer.run.start_save()
        except CheckpointError as error:
            self._report(error)
        if not self.asynchronous:
            self._finish()

    def after_train(self) -> None:
        self._finish()

    def _finish(self) -> None:
        """Wait until the checkpoint that was begun last is written, and delete older ones."""
        if self._under_way is None:
            return
        finish, self._under_way = self._under_way, None
        run = self.trainer.run
        is_known_bad = not run.state_is_sound
        try:
            with self.trainer.stop.uninterrupted():
                finish()
        except CheckpointError as error:
            self._report(error)
        except NonFiniteError:
            if not is_known_bad:
                raise
        else:
            run.prune()

    def _report(self, error: CheckpointError) -> None:
        # A full disk may have room again at the next save; the steps in between are worth having.
        self.trainer.log(f"WARNING: {error}; training continues")


class _BestSaver(Callback):
    """Base of `MinSaver` and `MaxSaver`."""

    priority = Priority.KEEP
    mode: Mode

    def __init__(self, stat: str) -> None:
        self.stat = stat
        self.state_key = f"{type(self).__name__}/{stat}"
        self.best = Best(self.mode)
        self._own: int | None = None  # the best step, if its checkpoint was written here

    def setup(self) -> None:
        self._checkpoints = self.trainer.require_experiment(self.name).checkpoints
        self._protect()
        # A ModelSaver in the list keeps or deletes the checkpoint that is no longer the best.
        self._has_saver = any(isinstance(innermost(callback), ModelSaver) for callback in self.trainer.callbacks)

    def check_run(self) -> None:
        self.trainer.monitors.registry.require(self, self.stat)

    def before_train(self) -> None:
        # A run may resume from before the step that an earlier note names, and reach that step again.
        step = self.best.step
        if step is not None and self.trainer.run.checkpoints.path(step).exists():
            self._write_note()
        else:
            self._note.unlink(missing_ok=True)

    def trigger(self) -> None:
        if not self.trainer.run.state_is_sound:
            return  # it would be saved aside
        step = self.trainer.global_step
        before, superseded = self.state_dict(), self._own
        if not self.best.update(self.trainer.monitors.latest(self.stat, at_step=step), step):
            return
        # The checkpoint holds the state that this callback has after it.
        checkpoints = self.trainer.run.checkpoints
        self._own = None if checkpoints.path(step).exists() else step
        try:
            self.trainer.save()
        except (CheckpointError, NonFiniteError) as error:
            self.load_state_dict(before)
            if isinstance(error, NonFiniteError):
                raise
            self.trainer.log(f"WARNING: {error}; training continues")
            return
        self._protect()
        self._write_note()
        if superseded is not None and superseded != step and not self._has_saver:
            checkpoints.remove(superseded, protected=self.trainer.run.protected_steps)

    def _protect(self) -> None:
        self.trainer.run.protect(str(self.state_key), self.best.step)

    @property
    def _note(self) -> Path:
        return self._checkpoints / f"{self.mode}-{self.stat.replace('/', '-')}.json"

    def _write_note(self) -> None:
        step = self.best.step
        assert step is not None
        name = self.trainer.run.checkpoints.path(step).name
        note = {"stat": self.stat, "value": self.best.value, "step": step, "checkpoint": name}
        try:
            write_atomic(self._note, json.dumps(note) + "\n")
        except OSError as error:  # of a full disk: the checkpoint is there, and a resume writes the note again
            self.trainer.log(f"WARNING: cannot write {self._note}: {error.strerror}")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "own": self._own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self._own = state["own"]
        self._protect()


class MinSaver(_BestSaver):
    """Writes a checkpoint whenever a scalar is smaller than ever before.

        MinSaver("vld/loss").every(steps=100)  # with Validation().every(steps=100)

    The checkpoint has the measured weights: it is written before `EarlyStopping` restores others, and a later save of
    the same step leaves it as it is. Only the best one is kept, and `ModelSaver(max_to_keep=...)` does not delete it.
    The best value and its step are part of every checkpoint; ``checkpoints/<min or max>-<stat>.json`` has them for
    other tools.

    Args:
        stat: the scalar's name, such as "vld/loss".

    Raises:
        CallbackError: while training, if the scalar was not measured at the current step.
    """

    mode = "min"


class MaxSaver(_BestSaver):
    """Writes a checkpoint whenever a scalar is larger than ever before; see `MinSaver`.

    Args:
        stat: the scalar's name, such as "vld/accuracy".
    """

    mode = "max"


class SaveOnExit(Callback):
    """Writes a checkpoint of the last completed step on every way out of a run: its end, a stop, a signal, an error.

    The state of a step that failed half-done is written aside as ``failed-<step>``, where no resume finds it.
    """

    priority = Priority.SAVE

    def setup(self) -> None:
        self.trainer.require_experiment("SaveOnExit")
        self._first_step: int | None = None

    def before_train(self) -> None:
        self._first_step = self.trainer.global_step

    def after_train(self) -> None:
        # Nothing to save if nothing was restored yet, or no step was completed since.
        run, step = self.trainer.run, self.trainer.global_step
        if self._first_step is None or (run.state_is_sound and step == self._first_step) or run.directory_is_gone():
            return  # a directory that is gone ends the run with an error
        path = self.trainer.save()
        if run.state_is_sound:
            run.prune()
            self.trainer.log(f"saved step {step} to {path}")
        else:
            self.trainer.log(f"the failed step is kept in {path} for inspection; {run.resume_point()}")


def save_ahead(trainer: Trainer) -> None:
    """Save now what `SaveOnExit`, if it is in the list, would save at the end: the weights are about to change."""
    is_over = trainer.callbacks.failure is None and trainer.run.state_is_sound
    if is_over and trainer.is_chief and any(isinstance(innermost(one), SaveOnExit) for one in trainer.callbacks):
        trainer.save()
