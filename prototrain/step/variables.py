"""Names of the scalars that towers share, and engine variables that checkpoints omit: the stop flag, the counter."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

SHARED_SCALARS = frozenset({"learning_rate", "loss_scale"})
"""Scalars of a step that do not depend on the batch and are the same in all towers."""

CALL_SECONDS = 0.2
"""Approximate maximum duration of a call of several steps; limits how long a stop and the progress bar wait."""


def scratch_variable(initial_value: Any, *, name: str, dtype: tf.DType | None = None) -> tf.Variable:
    """Return a variable that is set before each use, so checkpoints do not need it."""
    # Without lifting, `tf.function` does not trace twice for a variable created in `tf.init_scope` during tracing.
    variable = tf.Variable(
        initial_value, trainable=False, name=name, dtype=dtype, experimental_enable_variable_lifting=False
    )
    variable.is_scratch = True
    return variable


def is_scratch(variable: Any) -> bool:
    """Return whether `scratch_variable` made a variable."""
    return bool(getattr(variable, "is_scratch", False))


class StopVariable:
    """A flag that ends a compiled loop; signal handlers may set it at any time."""

    def __init__(self) -> None:
        self.value = scratch_variable(False, name="stop")

    def set(self, stop: bool) -> None:
        """Set the flag; works while a function is being traced."""
        with tf.init_scope():
            self.value.assign(stop)


class StepCounter:
    """A counter of completed steps. Traced code reads an int64 tensor, Python code a number."""

    def __init__(self) -> None:
        self._step = 0
        self._begun = 0
        self.traced: Any = None  # the step tensor of the last traced iteration, which `read` returns during tracing
        self._variable: Any = None
        self._is_read = False  # whether a graph reads the variable

    def prepare(self) -> None:
        """Create the variable that graphs read; call it outside `build`, which would add it to the model."""
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

    def begin(self) -> None:
        """Start an iteration in Python."""
        self._begun = self._step

    @property
    def begun(self) -> Any:
        """The number of completed steps at the start of the iteration; a tensor while it is traced."""
        traced = self.traced_step
        return self._begun if traced is None else traced

    @property
    def traced_step(self) -> Any:
        """The step tensor of the iteration being traced, also in its inner graphs; None outside an iteration."""
        if self.traced is None or tf.executing_eagerly():
            return None
        graph = tf.compat.v1.get_default_graph()  # only the compat.v1 API has it
        while graph is not None and graph is not self.traced.graph:
            graph = getattr(graph, "outer_graph", None)
        return None if graph is None else self.traced

    def read(self) -> Any:
        """Return the number of completed steps; an int64 scalar tensor during tracing."""
        if tf.executing_eagerly():
            return self._step
        if (traced := self.traced_step) is not None:
            return traced
        self.prepare()
        if not self._is_read:
            self._is_read = True
            with tf.init_scope():
                self.step = self._step
        return tf.identity(self._variable)
