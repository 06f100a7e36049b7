"""Steps that are not finite: how one is noticed, and kept from changing anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

_MARK = "prototrain: a value is not finite"
_SHOWN = re.compile(re.escape(_MARK) + r"\] \[(\d+)\] \[([^\]]*)\]")


def all_finite(tensors: Sequence[Any]) -> tf.Tensor:
    """Whether all of them are finite: a sum is not finite if one part is not, and costs less than many tests."""
    dense = [
        tensor.values if isinstance(tensor, tf.IndexedSlices) else tf.convert_to_tensor(tensor) for tensor in tensors
    ]
    sums = [tf.reduce_sum(tf.cast(tensor, tf.float32)) for tensor in dense if tensor.dtype.is_floating]
    return tf.math.is_finite(tf.add_n(sums)) if sums else tf.constant(True)


class FailingGuard:
    """Lets the call itself fail at a step that is not finite, ahead of its update.

    A conditional around the update costs a tenth of a small model's step; an op that fails costs next to nothing. What
    the step changes before it can know, such as batch statistics, is copied first and put back when it has failed.
    """

    def __init__(self) -> None:
        self._shadows: dict[int, tuple[tf.Variable, tf.Variable]] = {}
        self._shown: list[list[str]] = []  # by check, over all traces: the names of what its message shows
        self._begun: list[Any] = []
        self._checks: list[tf.Operation] = []

    def begin(self, variables: Sequence[tf.Variable]) -> None:
        """A step begins that may change these variables before it knows; traced."""
        self._checks = []
        self._begun = []
        for variable in variables:
            if id(variable) not in self._shadows:
                with tf.init_scope(), tf.device(variable.device):
                    self._shadows[id(variable)] = (variable, tf.Variable(variable, trainable=False, name="shadow"))
            with tf.device(variable.device):
                self._begun.append(self._shadows[id(variable)][1].assign(tf.identity(variable)))

    def require(self, finite: tf.Tensor, shown: Mapping[str, tf.Tensor]) -> tf.Operation:
        """Make the op that fails unless the step is finite; the update has to wait for it. Traced.

        Args:
            finite: a bool scalar.
            shown: scalars to appear in the message.
        """
        with tf.control_dependencies(self._begun):
            values = tf.stack([tf.cast(value, tf.float32) for value in shown.values()])
            place = tf.constant(len(self._shown))
            check = tf.raw_ops.Assert(condition=finite, data=[tf.constant(_MARK), place, values], summarize=len(shown))
        self._shown.append(list(shown))
        self._checks.append(check)
        return check

    def checks(self, graph: Any) -> list[tf.Operation]:
        """The ops of the present step that stand in this graph itself, not inside a loop of a user's own."""
        return [check for check in self._checks if check.graph is graph]

    def failed_with(self, error: tf.errors.OpError) -> str | None:
        """What was to be shown, if the error comes from such an op."""
        found = _SHOWN.search(str(error.message))
        if found is None:
            return None
        pairs = zip(self._shown[int(found[1])], found[2].split(), strict=True)
        return ", ".join(f"{name} {float(value):g}" for name, value in pairs)

    def put_back(self) -> None:
        """Undo what the failed step has changed."""
        for variable, shadow in self._shadows.values():
            variable.assign(shadow)
