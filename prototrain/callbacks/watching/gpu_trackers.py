"""How busy and how full the GPUs are."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback

_GIB = 2**30


class GPUUtilizationTracker(Callback):
    """Records how busy each GPU was since the last trigger, in percent, as ``perf/gpu<number>_utilization``.

    A thread asks the driver at an interval. It needs the extra ``prototrain[gpu]``; without it, or without a GPU, one
    line says so and nothing is recorded.

    Args:
        seconds: the interval.
        nvml: the module that asks the driver, `pynvml` if None.
    """

    def __init__(self, *, seconds: float = 1.0, nvml: Any = None) -> None:
        self._seconds = seconds
        self._given = nvml
        self._thread: threading.Thread | None = None

    def setup(self) -> None:
        self._nvml, reason = open_nvml(self._given)
        if self._nvml is None:
            self.trainer.log(f"GPUUtilizationTracker records nothing: {reason}")
        self._lock = threading.Lock()
        self._samples: list[list[int]] = []

    def before_train(self) -> None:
        if self._nvml is None:
            return
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="GPUUtilizationTracker", daemon=True)
        self._thread.start()

    def trigger(self) -> None:
        if self._thread is None:
            return
        if not self._thread.is_alive() or not self._samples:
            self._sample()
        with self._lock:
            samples, self._samples = self._samples, []
        for number, values in enumerate(zip(*samples, strict=True)):
            self.trainer.monitors.put_scalar(f"perf/gpu{number}_utilization", sum(values) / len(values))

    def after_train(self) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds):
            self._sample()

    def _sample(self) -> None:
        used = [int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in self._handles]
        with self._lock:
            self._samples.append(used)


class GPUMemoryTracker(Callback):
    """Records the most memory that TensorFlow has had on each GPU since the last trigger, in GiB.

    The names are ``perf/gpu<number>_memory_gib``. Without a GPU, one line says so and nothing is recorded.
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


def open_nvml(given: Any = None) -> tuple[Any, str]:
    """Start the library that asks the GPU driver.

    Returns:
        the module, or None and the reason why it cannot be used.
    """
    try:
        nvml = importlib.import_module("pynvml") if given is None else given
    except ImportError:
        return None, "nvidia-ml-py is not installed; pip install 'prototrain[gpu]'"
    try:
        nvml.nvmlInit()
        if not nvml.nvmlDeviceGetCount():
            nvml.nvmlShutdown()
            return None, "there is no GPU"
    except nvml.NVMLError as error:
        return None, f"the GPU driver does not answer ({error})"
    return nvml, ""
