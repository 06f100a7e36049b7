"""What compiled calls have in common: how long one may take, how scalars travel through it, how its failures read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.trainers.base import CALL_SECONDS

_NODE = re.compile(r"\[\[(?:\{\{function_node [^}]*\}\})?(?:\{\{node )?([^\]}]*)")


class StopVariable:
    """A flag that a compiled loop reads and a signal sets, at any moment.

    Attributes:
        value: the bool variable.
    """

    def __init__(self) -> None:
        self.value = tf.Variable(False, trainable=False, name="stop")

    def set(self, stop: bool) -> None:
        """Set the flag; also when the signal comes while a function is traced, without becoming a part of its graph."""
        with tf.init_scope():
            self.value.assign(stop)


class CallLength:
    """How many steps a call may have to take about `seconds`, learned from the calls before.

    Args:
        seconds: how long a call should take at most.
        clock: returns the time in seconds.
    """

    def __init__(self, seconds: float = CALL_SECONDS, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = seconds
        self._clock = clock
        self._begin = 0.0
        self._traced = False
        self.limit = 1

    def start(self) -> None:
        """A call begins."""
        self._begin = self._clock()

    def finish(self, steps: int) -> float:
        """It made so many steps.

        Returns:
            how long it took, if it was the first one: that spends its time on tracing and says nothing about a step.
        """
        elapsed = max(self._clock() - self._begin, 1e-6)
        if not self._traced:
            self._traced = True
            return elapsed
        if steps:
            fitting = int(self._seconds / elapsed * steps)
            self.limit = max(1, min(fitting, self.limit * 10))
        return 0.0


class Packing:
    """Carries a dict of scalars through a `tf.while` as two vectors, so that one copy brings all of them to the host.

    float32 values travel as they are, everything else as float64.
    """

    def __init__(self) -> None:
        self._names: tuple[list[str], list[str]] = ([], [])

    def pack(self, outputs: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Make the two vectors; traced.

        Raises:
            ModelError: an output is not a scalar.
        """
        single: dict[str, tf.Tensor] = {}
        double: dict[str, tf.Tensor] = {}
        for name, value in outputs.items():
            tensor = tf.convert_to_tensor(value)
            if tensor.shape.rank != 0:
                raise ModelError(f"a step's outputs must be scalars; {name!r} has shape {tensor.shape}")
            if tensor.dtype == tf.float32:
                single[name] = tensor
            else:
                double[name] = tf.cast(tensor, tf.float64)
        self._names = (list(single), list(double))
        return _stack(single, tf.float32), _stack(double, tf.float64)

    def unstack(self, vectors: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Take the vectors apart again; traced."""
        pairs = zip(self._names, vectors, strict=True)
        return {name: value for names, vector in pairs for name, value in zip(names, tf.unstack(vector), strict=True)}

    def unpack(self, vectors: tuple[tf.Tensor, tf.Tensor]) -> dict[str, float]:
        """Copy the scalars to the host."""
        found: dict[str, float] = {}
        for names, vector in zip(self._names, vectors, strict=True):
            if names:
                found.update(zip(names, vector.numpy().tolist(), strict=True))
        return found


def stage(error: tf.errors.OpError) -> str:
    """The part of an iteration that a TensorFlow error comes from: "data" or "model".

    The message ends with the op that failed and, if it failed inside another one, with that one: a dataset's ops fail
    inside the op that reads the iterator.
    """
    text = str(error.message)
    nodes = _NODE.findall(text)
    outermost = text.rpartition("[Op:")[2] if "[Op:Iterator" in text else nodes[-1] if nodes else ""
    return "data" if "IteratorGetNext" in outermost else "model"


def _stack(values: dict[str, tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    return tf.stack(list(values.values())) if values else tf.zeros([0], dtype)
