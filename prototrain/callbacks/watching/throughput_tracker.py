"""How fast the run is."""

from __future__ import annotations

import time
from collections.abc import Callable

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError


class ThroughputTracker(Callback):
    """Records the speed since it was last triggered, as ``perf/steps_per_second`` or ``perf/samples_per_second``.

    The time that callbacks take counts as well: it is the speed at which the run gets on.

    Args:
        samples: examples per step, such as ``model.batch_size``; None for steps per second.
        clock: returns the time in seconds.

    Raises:
        CallbackError: `samples` is not positive.
    """

    def __init__(self, samples: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        if samples is not None and samples <= 0:
            raise CallbackError(f"ThroughputTracker: samples must be positive, got {samples}")
        self._samples = samples
        self._clock = clock

    def before_train(self) -> None:
        self._step, self._time = self.trainer.global_step, self._clock()

    def trigger(self) -> None:
        step, now = self.trainer.global_step, self._clock()
        if step > self._step and now > self._time:
            speed = (step - self._step) / (now - self._time)
            if self._samples is None:
                self.trainer.monitors.put_scalar("perf/steps_per_second", speed)
            else:
                self.trainer.monitors.put_scalar("perf/samples_per_second", speed * self._samples)
        self._step, self._time = step, now
