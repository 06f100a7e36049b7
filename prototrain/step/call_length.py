"""How many steps one compiled call may have."""

from __future__ import annotations

import time

CALL_SECONDS = 0.2


class CallLength:
    """How many steps a call may have to take about `CALL_SECONDS`, learned from the calls before.

    Attributes:
        limit: how many steps the next call may have.
    """

    def __init__(self) -> None:
        self._begin = 0.0
        self._traced = False
        self.limit = 1

    def start(self) -> None:
        """A call begins."""
        self._begin = time.perf_counter()

    def finish(self, steps: int) -> float:
        """It made so many steps.

        Returns:
            how long it took, if it was the first one: that spends its time on tracing and says nothing about a step.
        """
        elapsed = max(time.perf_counter() - self._begin, 1e-6)
        if not self._traced:
            self._traced = True
            return elapsed
        if steps:
            fitting = int(CALL_SECONDS / elapsed * steps)
            self.limit = max(1, min(fitting, self.limit * 10))
        return 0.0
