"""Callbacks that track speed, remaining time, memory and GPU utilization, and a profiler."""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack, suppress

import tensorflow as tf

from prototrain.callbacks.base import Callback, Priority
from prototrain.errors import CallbackError
from prototrain.system.terminal import format_duration

_GIB = 2**30


class ThroughputTracker(Callback):
    """Records the speed since the last trigger as ``perf/steps_per_second`` or ``perf/samples_per_second``.

    The speed includes the time of callbacks.

    Args:
        samples: the number of examples per step, such as ``model.batch_size``; None to record steps per second.
    """

    clock = staticmethod(time.monotonic)

    def __init__(self, samples: int | None = None) -> None:
        self._name = "perf/steps_per_second" if samples is None else "perf/samples_per_second"
        self._samples = 1 if samples is None else samples

    def before_train(self) -> None:
        self._last = self.trainer.global_step, self.clock()

    def trigger(self) -> None:
        (step, begin), self._last = self._last, (self.trainer.global_step, self.clock())
        steps, seconds = self._last[0] - step, self._last[1] - begin
        if steps > 0 and seconds > 0:
            self.trainer.monitors.put_scalar(self._name, self._samples * steps / seconds)


class EstimatedTimeLeft(Callback):
    """Prints the estimated remaining time of the run.

    Args:
        last_k: the number of recent triggers over which to measure the speed.
    """

    priority = Priority.WRITE
    clock = staticmethod(time.monotonic)

    def __init__(self, *, last_k: int = 5) -> None:
        self._last_k = last_k

    def before_train(self) -> None:
        self._seen = deque([(self.trainer.global_step, self.clock())], maxlen=self._last_k + 1)

    def trigger(self) -> None:
        step, now = self.trainer.global_step, self.clock()
        self._seen.append((step, now))
        first_step, begin = self._seen[0]
        left = self.trainer.total_steps - step
        if not self.trainer.is_endless and left > 0 and step > first_step:
            self.trainer.log(f"time left: {format_duration((now - begin) / (step - first_step) * left)}")


class HostMemoryTracker(Callback):
    """Records the memory used by this process and its children, and the available memory of the host, in GiB.

    The scalars are ``perf/host_memory_gib`` and ``perf/host_memory_available_gib``.
    """

    def trigger(self) -> None:
        import psutil  # only this callback needs it

        this, used = psutil.Process(), 0
        for process in (this, *this.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # the process has just ended
                used += process.memory_info().rss
        available = psutil.virtual_memory().available
        scalars = {"host_memory_gib": used / _GIB, "host_memory_available_gib": available / _GIB}
        self.trainer.monitors.put_scalars(scalars, "perf")


class GPUUtilizationTracker(Callback):
    """Records the present utilization of each GPU, in percent, as ``perf/gpu<number>_utilization``.

    Requires the extra ``prototrain[gpu]``. Without the extra or without a GPU, the callback prints one line and records
    nothing.
    """

    def setup(self) -> None:
        self._handles = []
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            self._rates_of = pynvml.nvmlDeviceGetUtilizationRates
            reason = "no GPU"
        except Exception as error:  # no package, or an error of the driver
            reason = str(error)
        if not self._handles:
            self.trainer.log(f"GPUUtilizationTracker records nothing: {reason}; it needs 'prototrain[gpu]' and a GPU")

    def trigger(self) -> None:
        for number, handle in enumerate(self._handles):
            self.trainer.monitors.put_scalar(f"perf/gpu{number}_utilization", self._rates_of(handle).gpu)


class GPUMemoryTracker(Callback):
    """Records TensorFlow's peak memory on each GPU since the last trigger, in GiB, as ``perf/gpu<number>_memory_gib``.

    Without a GPU, the callback prints one line and records nothing.
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


class GraphProfiler(Callback):
    """Profiles a few steps with TensorFlow's profiler, for TensorBoard's profile tab.

        GraphProfiler(first_step=100, steps=3)

    The files are written below ``summaries/plugins/profile/``. Each profiled step is a separate call and is marked as a
    step.

    Args:
        first_step: the first step to profile. The first step of a run includes tracing.
        steps: the number of steps to profile.

    Raises:
        CallbackError: `first_step` or `steps` is not positive.
    """

    def __init__(self, *, first_step: int = 10, steps: int = 5) -> None:
        if first_step < 1 or steps < 1:
            raise CallbackError(f"GraphProfiler: first_step and steps must be at least 1, got {first_step} and {steps}")
        self._before = first_step - 1
        self._last = first_step - 1 + steps
        self._is_running = False
        self._step = ExitStack()  # the trace annotation of the current step

    def setup(self) -> None:
        self._directory = self.trainer.require_experiment("GraphProfiler").summaries

    def before_train(self) -> None:
        if (step := self.trainer.global_step) > self._before:
            self.trainer.log(f"GraphProfiler does nothing: the run resumed at step {step}, after first_step")
        self.trigger_step()

    def next_step(self, step: int) -> int | None:
        if self._is_running:
            return step + 1
        return self._before if step < self._before else None

    def trigger_step(self) -> None:
        step = self.trainer.global_step
        if not self._is_running and step == self._before:
            tf.profiler.experimental.start(str(self._directory))
            self._is_running = True
        self._step.close()
        if self._is_running and step < self._last:
            self._step.enter_context(tf.profiler.experimental.Trace("train", step_num=step + 1, _r=1))
        elif self._is_running:
            self._stop()

    def after_train(self) -> None:
        if self._is_running:
            self._stop()

    def _stop(self) -> None:
        self._is_running = False
        self._step.close()
        tf.profiler.experimental.stop()
        step = self.trainer.global_step
        self.trainer.log(f"profiled up to step {step}; look at it in TensorBoard: {self._directory}")
