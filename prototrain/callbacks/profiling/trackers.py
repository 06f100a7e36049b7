"""Speed, time left, memory, and how busy the GPUs are."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback, Priority
from prototrain.errors import CallbackError
from prototrain.system.wording import in_words


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
            unit = "steps" if self._samples is None else "samples"
            self.trainer.monitors.put_scalar(f"perf/{unit}_per_second", speed * (self._samples or 1))
        self._step, self._time = step, now


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


_GIB = 2**30


class HostMemoryTracker(Callback):
    """Records the memory of this process and its children, and what is free on the host, in GiB.

    The names are ``perf/host_memory_gib`` and ``perf/host_memory_available_gib``. A process that ends while it is
    looked at counts as nothing.
    """

    def setup(self) -> None:
        import psutil  # needed by this callback alone

        self._psutil = psutil
        self._process = psutil.Process()

    def trigger(self) -> None:
        used = 0
        for process in (self._process, *self._process.children(recursive=True)):
            with suppress(self._psutil.NoSuchProcess):
                used += process.memory_info().rss
        available = self._psutil.virtual_memory().available
        scalars = {"host_memory_gib": used / _GIB, "host_memory_available_gib": available / _GIB}
        self.trainer.monitors.put_scalars(scalars, "perf")


class GPUUtilizationTracker(Callback):
    """Records how busy each GPU was since the last trigger, in percent, as ``perf/gpu<number>_utilization``.

    A thread asks the driver at an interval. It needs the extra ``prototrain[gpu]``; without it, or without a GPU, it
    prints one line and records nothing.

    Args:
        seconds: the interval.
    """

    def __init__(self, *, seconds: float = 1.0) -> None:
        self._seconds = seconds

    def setup(self) -> None:
        self._handles, reason = _gpu_handles()
        if not self._handles:
            self.trainer.log(f"GPUUtilizationTracker records nothing: {reason}")
        self._samples: list[list[int]] = []
        self._ended = threading.Event()

    def before_train(self) -> None:
        if self._handles:
            threading.Thread(target=self._watch, name="GPUUtilizationTracker", daemon=True).start()

    def trigger(self) -> None:
        if self._handles:
            samples, self._samples = [*self._samples, self._sample()], []
            for number, values in enumerate(zip(*samples, strict=True)):
                self.trainer.monitors.put_scalar(f"perf/gpu{number}_utilization", sum(values) / len(values))

    def after_train(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds):
            self._samples.append(self._sample())

    def _sample(self) -> list[int]:
        import pynvml

        return [int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in self._handles]


def _gpu_handles() -> tuple[list[Any], str]:
    """The driver's handles of the GPUs, or the reason why there are none."""
    try:
        import pynvml
    except ImportError:
        return [], "nvidia-ml-py is not installed; pip install 'prototrain[gpu]'"
    try:
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())], "there is no GPU"
    except pynvml.NVMLError as error:
        return [], f"the GPU driver does not answer ({error})"


class GPUMemoryTracker(Callback):
    """Records the most memory that TensorFlow has had on each GPU since the last trigger, in GiB.

    The names are ``perf/gpu<number>_memory_gib``. Without a GPU it prints one line and records nothing.
    """

    def setup(self) -> None:
        self._devices = [device.name.split("device:")[-1] for device in tf.config.list_logical_devices("GPU")]
        if not self._devices:
            self.trainer.log("GPUMemoryTracker records nothing: there is no GPU")

    def trigger(self) -> None:
        for number, device in enumerate(self._devices):
            peak = tf.config.experimental.get_memory_info(device)["peak"]
            tf.config.experimental.reset_memory_stats(device)
            self.trainer.monitors.put_scalar(f"perf/gpu{number}_memory_gib", peak / _GIB)
