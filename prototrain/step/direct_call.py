"""Calling a traced function from Python with as little in between as there can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from prototrain.private_api.graphs import captures_vary


class DirectCall:
    """A traced function, called by the op that runs it.

    What `tf.function` does around that op takes longer than a small step does, which counts where Python calls for
    every step. The function is traced once, for the kind of arguments that it is first called with.

    Args:
        function: from and to nested structures of tensors.
        signature: of its arguments, if it is wider than that of the first ones.
        towers: with several, `tf.function` calls it after all: the op cannot be on all of their devices.
    """

    def __init__(
        self, function: Callable[..., Any], signature: Sequence[Any] | None = None, *, towers: int = 1
    ) -> None:
        self._function = tf.function(function, input_signature=signature, autograph=False)
        self._towers = towers
        self._traced: Any = None
        self._captured: list[tf.Tensor] | None = None  # where they are the same at each call

    @property
    def graph(self) -> Any:
        """What was traced, or None."""
        return None if self._traced is None else self._traced.graph

    def trace(self, *arguments: Any) -> None:
        """Trace it now, if it is not yet."""
        if self._traced is None:
            self._traced = self._function.get_concrete_function(*arguments)
            self._types = [tensor.dtype for tensor in self._traced.outputs]
            self._captured = None if captures_vary(self._traced) else self._traced.captured_inputs

    def __call__(self, *arguments: Any) -> list[tf.Tensor]:
        """Run it.

        Returns:
            its results, flat: `pack` puts them together.
        """
        self.trace(*arguments)
        if self._towers > 1:
            return list(tf.nest.flatten(self._traced(*arguments)))
        captured = self._traced.captured_inputs if self._captured is None else self._captured
        inputs = [*tf.nest.flatten(arguments, expand_composites=True), *captured]
        results: list[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(args=inputs, Tout=self._types, f=self._traced)
        return results

    def pack(self, results: list[tf.Tensor]) -> Any:
        """Give results the structure that the function returned."""
        return tf.nest.pack_sequence_as(self._traced.structured_outputs, results)
