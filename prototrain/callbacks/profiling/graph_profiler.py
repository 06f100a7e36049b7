"""TensorFlow's profiler for some steps of a run."""

from __future__ import annotations

from contextlib import ExitStack

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError


class GraphProfiler(Callback):
    """Profiles a few steps with TensorFlow's profiler; TensorBoard's profile tab shows the outcome.

    The files go into ``summaries/plugins/profile/``. Each of the steps is a separate call, marked as a step.

    Args:
        first_step: the first step that is profiled; not the very first, which is spent on tracing.
        steps: how many.

    Raises:
        CallbackError: a number is not positive.
    """

    def __init__(self, *, first_step: int = 10, steps: int = 5) -> None:
        if first_step < 1 or steps < 1:
            raise CallbackError(f"GraphProfiler: first_step and steps must be at least 1, got {first_step} and {steps}")
        self._before = first_step - 1
        self._last = first_step - 1 + steps
        self._running = False
        self._step = ExitStack()  # ends the mark of the step that is under way

    def setup(self) -> None:
        self._directory = self.trainer.require_experiment("GraphProfiler").summaries

    def before_train(self) -> None:
        if self.trainer.global_step == self._before:
            self._start()

    def next_step(self, step: int) -> int | None:
        if self._running:
            return step + 1
        return self._before if step < self._before else None

    def trigger_step(self) -> None:
        if not self._running:
            if self.trainer.global_step == self._before:
                self._start()
            return
        self._step.close()
        if self.trainer.global_step >= self._last:
            self._stop()
        else:
            self._mark()

    def after_train(self) -> None:
        if self._running:
            self._stop()

    def _start(self) -> None:
        tf.profiler.experimental.start(str(self._directory))
        self._running = True
        self._mark()

    def _mark(self) -> None:
        step = tf.profiler.experimental.Trace("train", step_num=self.trainer.global_step + 1, _r=1)
        self._step.enter_context(step)

    def _stop(self) -> None:
        self._running = False
        self._step.close()
        tf.profiler.experimental.stop()
        self.trainer.log(
            f"profiled up to step {self.trainer.global_step}; look at it in TensorBoard: {self._directory}"
        )
