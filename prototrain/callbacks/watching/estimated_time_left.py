"""How long the run will still take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from prototrain.callbacks.base import Callback, Priority
from prototrain.system.wording import in_words


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
        if not self.trainer.is_endless and left > 0 and step > first_step:
            self.trainer.log(f"time left: {in_words((now - begin) / (step - first_step) * left)}")
