"""How long the run will still take."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable

from prototrain.callbacks.base import Callback, Priority


class EstimatedTimeLeft(Callback):
    """Prints how long the run will still take, by the speed since some triggers ago.

    Args:
        last_k: the number of triggers that the speed is measured over.
        clock: returns the time in seconds.
    """

    priority = Priority.WRITE

    def __init__(self, *, last_k: int = 5, clock: Callable[[], float] = time.monotonic) -> None:
        self._last_k = last_k
        self._clock = clock

    def before_train(self) -> None:
        self._seen = deque([(self.trainer.global_step, self._clock())], maxlen=self._last_k + 1)

    def trigger(self) -> None:
        step, now = self.trainer.global_step, self._clock()
        self._seen.append((step, now))
        first_step, begin = self._seen[0]
        left = self.trainer.total_steps - step
        if self.trainer.total_steps < sys.maxsize and left > 0 and step > first_step:
            self.trainer.log(f"time left: {in_words((now - begin) / (step - first_step) * left)}")


def in_words(seconds: float) -> str:
    """A time in its two largest units.

    >>> in_words(3700), in_words(59.6), in_words(180000) ('1 h 2 min', '1 min', '2 d 2 h')
    """
    rest = round(seconds)
    if rest >= 3600:
        rest = round(rest / 60) * 60
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, rest = divmod(rest, length)
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2]) or "0 s"
