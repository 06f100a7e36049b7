"""How often to save: often enough to lose little with a failure, seldom enough to cost little."""

from __future__ import annotations

import math
import statistics
from collections import deque

DAY = 86400.0
FAILURE_SECONDS = DAY / 0.03
"""Seconds between two failures of a worker, where nobody says otherwise."""

FIRST_SECONDS = 60.0
"""Seconds before the first save, of which nobody knows what it costs."""

_REMEMBERED = 5  # saves
_WORTH_SAYING = 1.5  # by how much the interval must have changed


def best_interval(cost: float, failure_seconds: float) -> float:
    """The interval between saves at which saving and doing lost steps again cost least together, by Young and Daly.

    Args:
        cost: seconds for which a save holds up the training.
        failure_seconds: the mean time between failures.

    Returns:
        seconds, ``sqrt(2 * cost * failure_seconds)``; never less than the save itself takes.
    """
    return max(math.sqrt(2 * cost * failure_seconds), cost)


class SaveInterval:
    """The best interval by what saves have cost so far.

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
        self.seconds = FIRST_SECONDS

    def note(self, cost: float) -> str | None:
        """Take note of what a save has cost.

        Args:
            cost: seconds for which it has held up the training.

        Returns:
            a line for the user, if the interval has changed much.
        """
        self._costs.append(cost)
        cost = statistics.median(self._costs)
        self.seconds = best_interval(cost, self._failure_seconds)
        if self._said is not None and 1 / _WORTH_SAYING < self.seconds / self._said < _WORTH_SAYING:
            return None
        self._said = self.seconds
        who = f"{self._workers} workers" if self._workers > 1 else "1 worker"
        return (
            f"saving every {in_time(self.seconds)}: a save holds up the training for {cost:.2g} s, and a failure is "
            f"expected every {in_time(self._failure_seconds)} ({who})"
        )


def in_time(seconds: float) -> str:
    """A time in words, such as ``8.5 minutes``."""
    for size, unit in ((DAY, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} seconds"
