"""Waiting for processes that have still to start: who is waited for is said, and it ends when it is too late."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from prototrain.errors import ClusterError
from prototrain.system.waiting import PATIENCE_SECONDS

say = partial(print, flush=True)


class Waiting:
    """Says who is waited for, and ends that when it is too late.

    Args:
        seconds: to wait.
        announce: called with a line for the user.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        seconds: float,
        announce: Callable[[str], object] = say,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._announce, self._clock = seconds, announce, clock
        self._begin, self._said = clock(), ""

    def say_missing(self, missing: list[str], why: str = "", *, may_end: bool = True) -> None:
        """Wait for somebody; a line says so after two seconds, and whenever it becomes somebody else.

        Raises:
            ClusterError: it has taken too long.
        """
        whom = ", ".join(missing) + why
        elapsed = self._clock() - self._begin
        if may_end and elapsed > self._seconds:
            raise ClusterError(
                f"{whom} {'has' if len(missing) == 1 else 'have'} not come within {self._seconds:g} seconds "
                "(trainer.cluster_timeout); is every process started, and can all reach each other's ports?"
            )
        if elapsed > PATIENCE_SECONDS and whom != self._said:
            self._said = whom
            self._announce(f"waiting for {whom} to start ...")
