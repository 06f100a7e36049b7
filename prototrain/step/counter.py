"""The number of completed steps, also for those who read it while something is traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.step.scratch import scratch_variable


class StepCounter:
    """Counts steps. What is traced gets a tensor that is right whenever it runs, and not the number of that moment.

    Attributes:
        step: completed steps; whoever makes steps sets it.
    """

    def __init__(self) -> None:
        self._step = 0
        self._in_run: Any = None
        self._variable: Any = None
        self._is_read = False  # in a graph, by way of the variable

    def prepare(self) -> None:
        """Make the variable that graphs read: where `build` is traced, a new one would be taken for the model's."""
        if self._variable is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._variable = scratch_variable(np.int64(self._step), name="global_step", dtype=tf.int64)

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        if self._is_read:
            self._variable.assign(np.int64(step))  # of a Python number TensorFlow would keep a tensor for ever

    def trace_iteration(self, step: Any) -> None:
        """An iteration is traced from here on, with this tensor for the number of completed steps."""
        self._in_run = step

    @property
    def in_iteration(self) -> Any:
        """The tensor of the iteration that is being traced, or None; a graph within its graph belongs to it."""
        is_inside = hasattr(self._in_run, "graph") and not tf.executing_eagerly()
        graph = tf.compat.v1.get_default_graph() if is_inside else None  # nothing newer says what is being traced
        while graph is not None:
            if graph is self._in_run.graph:
                return self._in_run
            graph = getattr(graph, "outer_graph", None)
        return None

    def read(self) -> Any:
        """The number of completed steps; while something is traced, an int64 scalar tensor."""
        if tf.executing_eagerly():
            return self._step
        found = self.in_iteration
        if found is not None:
            return found
        self.prepare()
        if not self._is_read:
            self._is_read = True
            with tf.init_scope():
                self.step = self._step
        return tf.identity(self._variable)
