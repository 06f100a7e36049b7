"""Traced functions: `tf.function` for methods of many objects, and direct calls of a concrete function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from prototrain.tf_private import captures_vary


def compiled(function: Callable[..., Any]) -> Any:
    """`tf.function` without AutoGraph, for a method or an inner function.

    TensorFlow counts traces by code object and warns at the fifth: it would warn at the fifth evaluation in a loop,
    although each evaluation traces its own model once. A `partial` has its own count.
    """
    return tf.function(partial(function), autograph=False)


class ConcreteCall:
    """A function that is traced once and then called by the op that runs it.

    The Python code of `tf.function` around that op takes longer than a small training step, which matters when a
    callback asks for every step.

    Args:
        function: maps nested structures of tensors to nested structures of tensors.
        signature: of its arguments; the first call's arguments by default.
        towers: the number of towers. With several, `tf.function` makes the call: one op cannot be on all devices.
    """

    def __init__(
        self, function: Callable[..., Any], signature: Sequence[Any] | None = None, *, towers: int = 1
    ) -> None:
        self._function = tf.function(function, input_signature=signature, autograph=False)
        self._towers = towers
        self._traced: Any = None
        self._captured: list[tf.Tensor] | None = None  # None if they differ from call to call

    @property
    def graph(self) -> Any:
        """The traced graph, or None before the first call."""
        return None if self._traced is None else self._traced.graph

    def trace(self, *arguments: Any) -> None:
        """Trace the function, unless it is traced already."""
        if self._traced is None:
            self._traced = self._function.get_concrete_function(*arguments)
            self._types = [tensor.dtype for tensor in self._traced.outputs]
            self._captured = None if captures_vary(self._traced) else self._traced.captured_inputs

    def __call__(self, *arguments: Any) -> list[tf.Tensor]:
        """Run the function and return its results as a flat list; see `pack`."""
        self.trace(*arguments)
        if self._towers > 1:
            return list(tf.nest.flatten(self._traced(*arguments)))
        captured = self._traced.captured_inputs if self._captured is None else self._captured
        inputs = [*tf.nest.flatten(arguments, expand_composites=True), *captured]
        results: list[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(args=inputs, Tout=self._types, f=self._traced)
        return results

    def pack(self, results: list[tf.Tensor]) -> Any:
        """Give a flat list of results the structure that the function returned."""
        return tf.nest.pack_sequence_as(self._traced.structured_outputs, results)
