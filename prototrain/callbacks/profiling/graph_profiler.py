"""TensorFlow's profiler for some steps of a run."""

from __future__ import annotations

from contextlib import ExitStack

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError


class GraphProfiler(Callback):
    """Profiles a few steps with TensorFlow's profiler, for TensorBoard's profile tab.

        GraphProfiler(first_step=100, steps=3)

    The files are below ``summaries/plugins/profile/``. Each of the steps is a separate call, marked as a step.

    Args:
        first_step: the first step that is profiled; the very first one of a run includes tracing.
        steps: how many.

    Raises:
        CallbackError: a number is not positive.
    """

    def __init__(self, *, first_step: int = 10, steps: int = 5) -> None:
        if first_step < 1 or steps < 1:
            raise CallbackError(f"GraphProfiler: first_step and steps must be at least 1, got {first_step} and {steps}")
        self._before = first_step - 1
        self._last = first_step - 1 + steps
        self._is_running = False
        self._step = ExitStack()  # ends the mark of the current step

    def setup(self) -> None:
        self._directory = self.trainer.require_experiment("GraphProfiler").summaries

    def before_train(self) -> None:
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
