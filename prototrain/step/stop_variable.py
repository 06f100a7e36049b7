"""What ends a compiled loop from outside."""

from __future__ import annotations

import tensorflow as tf

from prototrain.step.scratch import scratch_variable


class StopVariable:
    """A flag that a compiled loop reads and a signal sets, at any moment.

    Attributes:
        value: the bool variable.
    """

    def __init__(self) -> None:
        self.value = scratch_variable(False, name="stop")

    def set(self, stop: bool) -> None:
        """Set the flag; also when the signal comes while a function is traced, without becoming a part of its graph."""
        with tf.init_scope():
            self.value.assign(stop)
