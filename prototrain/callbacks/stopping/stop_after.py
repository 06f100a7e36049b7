"""Ending a run after some time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prototrain.callbacks.base import Callback, begins_anew
from prototrain.errors import CallbackError, StopTraining


class StopAfter(Callback):
    """Ends the run when it has been training for so long. The times of all runs that were resumed add up.

    Args:
        hours: how long; the three are added.
        minutes: likewise.
        seconds: likewise.
        clock: returns the time in seconds.

    Raises:
        CallbackError: the time is not positive.
    """

    chief_only = False

    def __init__(
        self,
        *,
        hours: float = 0.0,
        minutes: float = 0.0,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = hours * 3600 + minutes * 60 + seconds
        if not self._limit > 0:
            raise CallbackError("StopAfter: give a time, such as StopAfter(hours=8)")
        self._clock = clock
        self._earlier = 0.0
        self._begin: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds of training, over all runs that were resumed."""
        return self._earlier + (0.0 if self._begin is None else self._clock() - self._begin)

    def setup(self) -> None:
        self._earlier, self._begin = 0.0 if begins_anew(self) else self.elapsed, None

    def before_train(self) -> None:
        self._begin = self._clock()
        self._stop_if_over()

    def next_step(self, step: int) -> int | None:
        return step + 1 if self.elapsed >= self._limit else None

    def trigger_step(self) -> None:
        self._stop_if_over()

    def after_train(self) -> None:
        self._earlier, self._begin = self.elapsed, None

    def _stop_if_over(self) -> None:
        if self.elapsed >= self._limit:
            raise StopTraining(f"its time is up: {self.elapsed:.0f} s of {self._limit:.0f} s")

    def state_dict(self) -> dict[str, Any]:
        return {"elapsed": self.elapsed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._earlier = float(state["elapsed"])
