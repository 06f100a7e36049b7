"""Callbacks that save checkpoints: periodically, at the best value of a scalar, and on exit."""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prototrain.callbacks.base import Callback, PeriodicTrigger, Priority
from prototrain.callbacks.monitor import Best, Mode
from prototrain.errors import CallbackError, CheckpointError, NonFiniteError
from prototrain.system.files import write_atomic
from prototrain.system.terminal import format_duration

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_DAY = 86400.0
_FIRST_SECONDS = 60.0  # until the first save, whose cost is unknown


class ModelSaver(Callback):
    """Writes a checkpoint and deletes old ones. A failed save prints a warning, and training continues.

        ModelSaver(max_to_keep=3).every(steps=1000)
        ModelSaver().every(seconds="auto")

    Args:
        max_to_keep: the number of checkpoints to keep.
        asynchronous: whether training continues while the files are written. If the process is killed during a write,
            the previous checkpoint remains. A failure is reported at the next save.

    Raises:
        CallbackError: `max_to_keep` is not a positive whole number.
    """

    priority = Priority.SAVE

    def __init__(self, *, max_to_keep: int = 5, asynchronous: bool = False) -> None:
        if max_to_keep < 1 or max_to_keep % 1:
            raise CallbackError(f"ModelSaver: max_to_keep must be a whole number of at least 1, got {max_to_keep!r}")
        self.max_to_keep = max_to_keep
        self.asynchronous = asynchronous
        self._under_way: Callable[[], Path] | None = None

    def every(self, *, seconds: float | Literal["auto"] | None = None, **intervals: Any) -> PeriodicTrigger:
        """Return a callback that saves at an interval; see `PeriodicTrigger` and, for "auto", `AutoInterval`."""
        if seconds == "auto":
            if other := intervals.keys() - {"failures_per_day"}:
                raise CallbackError(f'ModelSaver: every(seconds="auto") takes no {", ".join(other)}')
            return AutoInterval(self, **intervals)
        return super().every(seconds=seconds, **intervals)

    def setup(self) -> None:
        self.trainer.require_experiment("ModelSaver")
        self.trainer.run.max_to_keep = max(self.max_to_keep, self.trainer.run.max_to_keep or 0)

    def trigger(self) -> None:
        self._finish()
        with _warning_of_failed_saves(self.trainer):
            self._under_way = self.trainer.run.start_save()
        if not self.asynchronous:
            self._finish()

    def after_train(self) -> None:
        self._finish()

    def _finish(self) -> None:
        """Wait for the pending checkpoint and delete old ones."""
        if self._under_way is None:
            return
        finish, self._under_way = self._under_way, None
        is_known_bad = not self.trainer.run.state_is_sound
        try:
            with _warning_of_failed_saves(self.trainer):
                finish()
                self.trainer.run.prune()
        except NonFiniteError:
            if not is_known_bad:
                raise


class AutoInterval(PeriodicTrigger):
    """Triggers a `ModelSaver` at the interval of Young and Daly, for ``ModelSaver().every(seconds="auto")``.

    The interval minimizes the cost of saving and of repeating lost steps: ``sqrt(2 * cost * failure_seconds)``, with
    the measured cost of a save.

    Args:
        saver: the callback that saves.
        failures_per_day: the expected failures of each worker per day. The default is about one a month.

    Raises:
        CallbackError: `failures_per_day` is not positive.
    """

    def __init__(self, saver: Callback, *, failures_per_day: float = 0.03) -> None:
        super().__init__(saver, every_n_seconds=_FIRST_SECONDS)
        if not failures_per_day > 0:
            raise CallbackError(f"{saver.name}: failures_per_day must be positive, got {failures_per_day!r}")
        self._failure_seconds = _DAY / failures_per_day
        self._costs: deque[float] = deque(maxlen=5)

    def trigger(self) -> None:
        self.trainer.monitors.put_scalar("checkpoint/interval", self.intervals["seconds"])
        begin = self.clock()
        super().trigger()
        self._costs.append(self.clock() - begin)
        cost, failure_seconds = statistics.median(self._costs), self._failure_seconds / self.trainer.workers
        self.intervals["seconds"] = seconds = max(math.sqrt(2 * cost * failure_seconds), cost)
        if len(self._costs) == 1:
            self.trainer.log(
                f"saving every {format_duration(seconds)}: a save holds up the training for {cost:.2g} s, and a "
                f"failure is expected every {format_duration(failure_seconds)} (workers: {self.trainer.workers})"
            )


@contextmanager
def _warning_of_failed_saves(trainer: Trainer) -> Iterator[None]:
    """Print a warning instead of raising CheckpointError: a full disk may have space again at the next save."""
    try:
        yield
    except CheckpointError as error:
        trainer.log(f"WARNING: {error}; training continues")


class _BestSaver(Callback):
    """Base of `MinSaver` and `MaxSaver`."""

    priority = Priority.SAVE_BEST
    mode: Mode

    def __init__(self, stat: str) -> None:
        self.stat = stat
        self.state_key = f"{type(self).__name__}/{stat}"
        self.best = Best(self.mode)
        self._own: int | None = None  # the best step if this callback wrote its checkpoint

    def setup(self) -> None:
        directory = self.trainer.require_experiment(self.name).checkpoints
        self._note = directory / f"{self.mode}-{self.stat.replace('/', '-')}.json"
        self._protect()

    def before_train(self) -> None:
        # An earlier attempt may have left a note for a step that this run has not reached yet.
        step = self.best.step
        if step is not None and self.trainer.run.checkpoints.path(step).exists():
            self._write_note()
        else:
            self._note.unlink(missing_ok=True)

    def trigger(self) -> None:
        run, step = self.trainer.run, self.trainer.global_step
        if not run.state_is_sound:
            return  # an unsound state would be saved as failed-<step>
        before, superseded = self.state_dict(), self._own
        if not self.best.update(self.trainer.monitors.latest(self.stat, at_step=step), step):
            return
        # Set before the save, since the checkpoint holds this callback's state.
        self._own = None if run.checkpoints.path(step).exists() else step
        try:
            self.trainer.save()
        except CheckpointError as error:
            self.load_state_dict(before)
            self.trainer.log(f"WARNING: {error}; training continues")
            return
        self._protect()
        self._write_note()
        if run.max_to_keep is None and superseded not in (None, step):  # else ModelSaver deletes checkpoints
            run.checkpoints.remove(superseded, protected=run.protected_steps)

    def _protect(self) -> None:
        self.trainer.run.protect(str(self.state_key), self.best.step)

    def _write_note(self) -> None:
        step = self.best.step
        assert step is not None
        name = self.trainer.run.checkpoints.path(step).name
        note = {"stat": self.stat, "value": self.best.value, "step": step, "checkpoint": name}
        try:
            write_atomic(self._note, json.dumps(note) + "\n")
        except OSError as error:  # such as a full disk; a resume writes the note again
            self.trainer.log(f"WARNING: cannot write {self._note}: {error.strerror}; training continues")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "own": self._own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self._own = state["own"]
        self._protect()


class MinSaver(_BestSaver):
    """Writes a checkpoint when a scalar reaches a new minimum.

        MinSaver("vld/loss").every(steps=100)  # with Validation().every(steps=100)

    The checkpoint holds the measured weights: it is written before `EarlyStopping` restores the best weights, and later
    saves of the same step do not overwrite it. Only the best checkpoint is kept, and `ModelSaver(max_to_keep=...)` does
    not delete it. The best value and its step are saved in every checkpoint and, for other tools, in
    ``checkpoints/<min or max>-<stat>.json``.

    Args:
        stat: the scalar's name, such as "vld/loss".

    Raises:
        CallbackError: while training, if the scalar was not measured at the current step.
    """

    mode = "min"


class MaxSaver(_BestSaver):
    """Writes a checkpoint when a scalar reaches a new maximum; see `MinSaver`.

    Args:
        stat: the scalar's name, such as "vld/accuracy".
    """

    mode = "max"


class SaveOnExit(Callback):
    """Writes a checkpoint of the last completed step when a run ends, stops, is interrupted or fails.

    The state of a step that failed halfway is saved as ``failed-<step>``, from which no run resumes.
    """

    priority = Priority.SAVE

    def setup(self) -> None:
        self.trainer.require_experiment("SaveOnExit")

    def after_train(self) -> None:
        # There is nothing to save before the restore or before the first completed step.
        run, step = self.trainer.run, self.trainer.global_step
        if not run.is_accepted or (run.state_is_sound and step == run.began_at) or run.directory_is_gone():
            return  # the run itself reports a missing directory
        path = self.trainer.save()
        if run.state_is_sound:
            run.prune()
            self.trainer.log(f"saved step {step} to {path}")
        else:
            self.trainer.log(f"the failed step is kept in {path} for inspection; {run.resume_point()}")


def save_ahead(trainer: Trainer) -> None:
    """Save the checkpoint of `SaveOnExit` early, before the weights change, and keep it. Does nothing without it."""
    is_over = trainer.callbacks.failure is None and trainer.run.state_is_sound
    if is_over and trainer.is_chief and trainer.callbacks.of_class(SaveOnExit):
        trainer.save()
        trainer.run.protect("SaveOnExit", trainer.global_step)
