"""How many steps one compiled call may have."""

from __future__ import annotations

import time
from collections.abc import Callable

CALL_SECONDS = 0.2


class CallLength:
    """How many steps a call may have to take about `seconds`, learned from the calls before.

    Args:
        seconds: how long a call should take at most.
        clock: returns the time in seconds.

    Attributes:
        limit: how many steps the next call may have.
    """

    def __init__(self, seconds: float = CALL_SECONDS, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = seconds
        self._clock = clock
        self._begin = 0.0
        self._traced = False
        self.limit = 1

    def start(self) -> None:
        """A call begins."""
        self._begin = self._clock()

    def finish(self, steps: int) -> float:
        """It made so many steps.

        Returns:
            how long it took, if it was the first one: that spends its time on tracing and says nothing about a step.
        """
        elapsed = max(self._clock() - self._begin, 1e-6)
        if not self._traced:
            self._traced = True
            return elapsed
        if steps:
            fitting = int(self._seconds / elapsed * steps)
            self.limit = max(1, min(fitting, self.limit * 10))
        return 0.0
