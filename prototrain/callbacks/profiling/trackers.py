"""Speed, time left, memory, and utilization of the GPUs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import tensorflow as tf

from prototrain.callbacks.base import Callback, Priority
from prototrain.system.wording import in_words

_GIB = 2**30
_SAMPLE_SECONDS = 1.0


class ThroughputTracker(Callback):
    """Records the speed since it was last triggered, as ``perf/steps_per_second`` or ``perf/samples_per_second``.

    The time of callbacks is included.

    Args:
        samples: examples per step, such as ``model.batch_size``; None for steps per second.
        clock: returns the time in seconds.
    """

    def __init__(self, samples: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = "perf/steps_per_second" if samples is None else "perf/samples_per_second"
        self._samples = 1 if samples is None else samples
        self._clock = clock

    def before_train(self) -> None:
        self._last = self.trainer.global_step, self._clock()

    def trigger(self) -> None:
        (step, begin), self._last = self._last, (self.trainer.global_step, self._clock())
        steps, seconds = self._last[0] - step, self._last[1] - begin
        if steps > 0 and seconds > 0:
            self.trainer.monitors.put_scalar(self._name, self._samples * steps / seconds)


class EstimatedTimeLeft(Callback):
    """Prints the time that the run will still take, by the speed since some triggers ago.

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


class HostMemoryTracker(Callback):
    """Records the memory of this process and its children, and the free memory of the host, in GiB.

    The names are ``perf/host_memory_gib`` and ``perf/host_memory_available_gib``.
    """

    def trigger(self) -> None:
        import psutil  # needed by this callback alone

        this, used = psutil.Process(), 0
        for process in (this, *this.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                used += process.memory_info().rss
        available = psutil.virtual_memory().available
        scalars = {"host_memory_gib": used / _GIB, "host_memory_available_gib": available / _GIB}
        self.trainer.monitors.put_scalars(scalars, "perf")


class GPUUtilizationTracker(Callback):
    """Records the utilization of each GPU since the last trigger, in percent, as ``perf/gpu<number>_utilization``.

    A thread asks the driver once a second. It needs the extra ``prototrain[gpu]``; without it, or without a GPU, it
    prints one line and records nothing.
    """

    def setup(self) -> None:
        self._handles, reason = [], "there is no GPU"
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except ImportError:
            reason = "nvidia-ml-py is not installed; pip install 'prototrain[gpu]'"
        except pynvml.NVMLError as error:
            reason = f"the GPU driver does not answer ({error})"
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
        while not self._ended.wait(_SAMPLE_SECONDS):
            self._samples.append(self._sample())

    def _sample(self) -> list[int]:
        import pynvml

        return [int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in self._handles]


class GPUMemoryTracker(Callback):
    """Records the largest memory that TensorFlow has used on each GPU since the last trigger, in GiB.

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
