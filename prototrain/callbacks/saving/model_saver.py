"""Saving checkpoints at intervals."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prototrain.callbacks.base import Callback, Priority
from prototrain.errors import CallbackError, CheckpointError, NonFiniteError
from prototrain.system.wording import in_words

if TYPE_CHECKING:
    from prototrain.callbacks.base import PeriodicTrigger

_DAY = 86400.0
_FAILURE_SECONDS = _DAY / 0.03  # between two failures of a worker, by default
_FIRST_SECONDS = 60.0  # before the first save, whose cost is not known
_REMEMBERED = 5  # saves
_WORTH_SAYING = 1.5  # the change of the interval that is reported


class ModelSaver(Callback):
    """Writes a checkpoint and deletes all but the newest ones. A failed save is reported, and training continues.

    Args:
        max_to_keep: how many checkpoints stay.
        asynchronous: continue training while the files are written. A process that is killed during that has the
            checkpoint before; a failure is reported at the next save.
        interval: "auto" for the interval at which saving and doing lost steps again cost least together, from what
            saves are measured to cost and how often a failure is expected. Then there is no `every`; the end of the run
            counts as due.
        failures_per_day: how often each worker (the process, if there is only one) is expected to fail, for "auto"; by
            default 0.03, about once a month.
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
        if interval not in (None, "auto"):
            raise CallbackError(f'ModelSaver: interval must be "auto", got {interval!r}; else use .every(steps=...)')
        if failures_per_day is not None and (interval is None or not failures_per_day > 0):
            raise CallbackError(
                f'ModelSaver: failures_per_day must be positive, and is for interval="auto"; got {failures_per_day}'
            )
        self.max_to_keep = max_to_keep
        self.asynchronous = asynchronous
        self._under_way: Callable[[], Path] | None = None
        self._is_timed = interval == "auto"
        self._failure_seconds = _FAILURE_SECONDS if failures_per_day is None else _DAY / failures_per_day
        self._clock = clock
        self._saved_at = (-1, 0.0)  # the step and the time

    def overrides(self, hook: str) -> bool:
        if hook in ("next_step", "trigger_step") and not self._is_timed:
            return False
        return super().overrides(hook)

    def setup(self) -> None:
        self.trainer.require_experiment("ModelSaver")
        self.trainer.run.max_to_keep = max(self.max_to_keep, self.trainer.run.max_to_keep or 0)
        self._interval = SaveInterval(self._failure_seconds, self.trainer.workers)

    def before_train(self) -> None:
        self._saved_at = (-1, self._clock())

    def every(self, **intervals: Any) -> PeriodicTrigger:
        if self._is_timed:
            raise CallbackError('ModelSaver: interval="auto" is an interval already, so that .every() has no place')
        return super().every(**intervals)

    def next_step(self, step: int) -> int | None:
        return step + 1 if self._is_due() else self.trainer.total_steps

    def trigger_step(self) -> None:
        # The ends of epochs and of the run are left to `trigger_epoch`, as a `PeriodicTrigger` does.
        trainer = self.trainer
        if trainer.local_step < trainer.steps_per_epoch and trainer.global_step < trainer.total_steps:
            self.trigger()

    def trigger_epoch(self) -> None:
        if not self._is_timed or self._is_due() or self.trainer.global_step >= self.trainer.total_steps:
            self.trigger()

    def _is_due(self) -> bool:
        return self._clock() - self._saved_at[1] >= self._interval.seconds

    def trigger(self) -> None:
        if not self._is_timed:
            self._save()
            return
        begin, step = self._clock(), self.trainer.global_step
        if self._saved_at[0] == step:
            return
        self.trainer.monitors.put_scalar("checkpoint/interval", self._interval.seconds)
        self._save()
        self._saved_at = (step, self._clock())
        line = self._interval.note(self._saved_at[1] - begin)
        if line is not None:
            self.trainer.log(line)

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
            return
        except NonFiniteError:
            if not is_known_bad:
                raise
            return
        run.prune()

    def _report(self, error: CheckpointError) -> None:
        # A full disk may have room again at the next save; the steps in between are worth having.
        self.trainer.log(f"WARNING: {error}; training continues")


class SaveInterval:
    """The interval between saves at which saving and doing lost steps again cost least, by Young and Daly.

    That is ``sqrt(2 * cost * failure_seconds)``, and never less than a save takes.

    Args:
        failure_seconds: the mean time between failures of one worker.
        workers: how many there are, each of which ends the run when it fails.

    Attributes:
        seconds: the interval.
    """

    def __init__(self, failure_seconds: float, workers: int) -> None:
        self._failure_seconds = failure_seconds / workers
        self._workers = workers
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)
        self._said: float | None = None
        self.seconds = _FIRST_SECONDS

    def note(self, cost: float) -> str | None:
        """Add the cost of a save.

        Args:
            cost: seconds for which it has held up the training.

        Returns:
            a line for the user, if the interval has changed much.
        """
        self._costs.append(cost)
        cost = statistics.median(self._costs)
        self.seconds = max(math.sqrt(2 * cost * self._failure_seconds), cost)
        if self._said is not None and 1 / _WORTH_SAYING < self.seconds / self._said < _WORTH_SAYING:
            return None
        self._said = self.seconds
        who = f"{self._workers} workers" if self._workers > 1 else "1 worker"
        return (
            f"saving every {in_words(self.seconds)}: a save holds up the training for {cost:.2g} s, and a failure is "
            f"expected every {in_words(self._failure_seconds)} ({who})"
        )
