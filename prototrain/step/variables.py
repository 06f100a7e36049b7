"""Variables of the engine that no checkpoint holds: the stop flag and the step counter."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

CALL_SECONDS = 0.2
"""About how long a call of several steps lasts at most, so that a stop and the progress bar need not wait for it."""


def scratch_variable(initial_value: Any, *, name: str, dtype: tf.DType | None = None) -> tf.Variable:
    """Return a variable that is set before each use, so that no checkpoint needs it."""
    # Without lifting, `tf.function` does not trace a second time for a variable made in `tf.init_scope` while tracing.
    variable = tf.Variable(
        initial_value, trainable=False, name=name, dtype=dtype, experimental_enable_variable_lifting=False
    )
    variable.is_scratch = True
    return variable


def is_scratch(variable: Any) -> bool:
    """Whether `scratch_variable` made a variable."""
    return bool(getattr(variable, "is_scratch", False))


class StopVariable:
    """A flag that ends a compiled loop; a signal may set it at any moment.

    Attributes:
        value: the bool variable.
    """

    def __init__(self) -> None:
        self.value = scratch_variable(False, name="stop")

    def set(self, stop: bool) -> None:
        """Set the flag, also while a function is being traced in another thread."""
        with tf.init_scope():
            self.value.assign(stop)


class StepCounter:
    """Counts completed steps. Traced code reads a tensor with the number of each step, Python code a number."""

    def __init__(self) -> None:
        self._step = 0
        self._begun = 0
        self._traced: Any = None  # the step tensor of the iteration that is, or was, traced
        self._variable: Any = None
        self._is_read = False  # by a graph, through the variable

    def prepare(self) -> None:
        """Create the variable that graphs read; inside `build` it would be taken for one of the model's."""
        if self._variable is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._variable = scratch_variable(np.int64(self._step), name="global_step", dtype=tf.int64)

    @property
    def step(self) -> int:
        """The number of completed steps."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        if self._is_read:
            self._variable.assign(np.int64(step))  # TensorFlow would cache a tensor for each Python number

    def trace_iteration(self, step: tf.Tensor) -> None:
        """Set the tensor that `read` returns while an iteration is traced."""
        self._traced = step

    def begin(self) -> None:
        """Begin an iteration in Python."""
        self._begun = self._step

    @property
    def begun(self) -> Any:
        """Completed steps when the present iteration began; a tensor while it is traced."""
        traced = self.in_iteration
        return self._begun if traced is None else traced

    @property
    def in_iteration(self) -> Any:
        """The step tensor of the iteration that is being traced, or None; inner graphs belong to it."""
        if self._traced is None or tf.executing_eagerly():
            return None
        graph = tf.compat.v1.get_default_graph()  # TensorFlow 2 has no other name for it
        while graph is not None and graph is not self._traced.graph:
            graph = getattr(graph, "outer_graph", None)
        return None if graph is None else self._traced

    def read(self) -> Any:
        """The number of completed steps; an int64 scalar tensor while something is traced."""
        if tf.executing_eagerly():
            return self._step
        if (traced := self.in_iteration) is not None:
            return traced
        self.prepare()
        if not self._is_read:
            self._is_read = True
            with tf.init_scope():
                self.step = self._step
        return tf.identity(self._variable)
