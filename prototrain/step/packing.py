"""Scalars on their way through a compiled loop and to the host."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError


class Packing:
    """Carries a dict of scalars through a `tf.while` as two vectors, so that one copy brings all of them to the host.

    float32 values travel as they are, everything else as float64.
    """

    def __init__(self) -> None:
        self._names: tuple[list[str], list[str]] = ([], [])

    @property
    def names(self) -> list[str]:
        """Those of the scalars, once the vectors are made."""
        single, double = self._names
        return [*single, *double]

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


def _stack(values: dict[str, tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    return tf.stack(list(values.values())) if values else tf.zeros([0], dtype)
