"""Looks after a call in which the workers wait for each other, and which TensorFlow would not end by itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prototrain.cluster.link import Link
from prototrain.system.waiting import PATIENCE_SECONDS

SIGNAL_SECONDS = 1.5
END_SECONDS = 8.0
_ENDED_SECONDS = 5.0


class CallWatch:
    """Says whom a call waits for, and ends it where a signal wants that or a worker has broken down.

    Args:
        link: the line to the other workers; its `watch` is this object's from now on.
        begun: returns how many steps this worker has its batches of.
        wanted: returns the signal that wants the run to end, or None.
        announce: called with a line for the user.
        clock: returns the time in seconds.
        leave: ends the process at once, with an exit code.
    """

    def __init__(
        self,
        link: Link,
        begun: Callable[[], int],
        wanted: Callable[[], int | None],
        announce: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.monotonic,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._link = link
        self._begun = begun
        self._wanted = wanted
        self._announce = announce
        self._clock = clock
        self._leave = leave
        self._first: float | None = None
        self._longest = 0.0
        self._is_under_way = self._has_said = False
        self._seen = -1
        self._moved = 0.0
        self._wanted_at: float | None = None
        self._broken_at: float | None = None
        link.watch = self.look
        link.begun = lambda: self._begun() if self._is_under_way and self._first is not None else None

    @contextmanager
    def under_way(self, after: int) -> Iterator[None]:
        """Look after what is done inside, a call of some steps.

        Args:
            after: the number of completed steps.
        """
        begin = self._clock()
        self._seen, self._moved, self._has_said = -1, begin, False
        self._is_under_way = True
        self._link.be(
            f"in step {after + 1}" if self._first is not None else "in its first step, which is traced", together=True
        )
        try:
            yield
        finally:
            self._is_under_way = False
            self._link.be(f"busy behind step {self._begun()}")
            took = self._clock() - begin
            if self._first is None:
                self._first = took  # most of which is tracing
            else:
                self._longest = max(self._longest, took)

    @property
    def grace(self) -> float:
        """Seconds within which the other workers have ended a call that has ended here."""
        return max(_ENDED_SECONDS, 3 * (self._longest or self._first or 0.0))

    def look(self) -> None:
        """Look after the call that is under way; called twice a second, from a thread."""
        now, wanted = self._clock(), self._wanted()
        self._wanted_at = None if wanted is None else now if self._wanted_at is None else self._wanted_at
        self._broken_at = None if self._link.broken is None else now if self._broken_at is None else self._broken_at
        if self._broken_at is not None and now - self._broken_at > END_SECONDS:
            self._end_at_once()
        if not self._is_under_way or self._link.broken is not None:
            return
        if (begun := self._begun()) != self._seen:
            self._seen, self._moved = begun, now
        if not self._has_said and self._first is not None and now - self._moved > self._patience(5):
            whom = self._link.whom_it_waits_for()
            if whom is not None:
                self._has_said = True
                self._announce(f"waiting for {whom}")
        if wanted is not None and self._wanted_at is not None:
            stuck = now - max(self._wanted_at, self._moved)
            silent = self._link.somebody_is_silent and now - self._wanted_at > SIGNAL_SECONDS
            if silent or stuck > max(SIGNAL_SECONDS, 3 * self._longest):
                self._link.fail(f"it was stopped by {signal.Signals(wanted).name}", signum=wanted)
                self._link.is_noticed = False

    def _patience(self, calls: int) -> float:
        return max(PATIENCE_SECONDS, calls * self._longest)

    def _end_at_once(self) -> None:
        """The call does not come back although its collectives are broken off: something of this worker is stuck."""
        if self._link.is_noticed or self._link.broken is None:
            return
        if self._is_under_way or self._link.is_to_blame:
            signum = self._link.broken["signum"]
            sys.stderr.write(f"prototrain: error: {self._link.verdict}\n")
            sys.stderr.flush()
            self._leave(1 if signum is None else 128 + signum)
