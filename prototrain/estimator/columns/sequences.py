"""Columns of sequences: what a recurrent layer takes, and how long each example is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.columns.base import Column
from prototrain.estimator.columns.reading import raw
from prototrain.estimator.columns.single import OfOneFeature


@dataclass(frozen=True)
class SequenceCategorical(Column):
    """See `sequence_categorical_column_with_identity` and its like."""

    categorical_column: OfOneFeature

    @property
    def name(self) -> str:
        return self.categorical_column.name

    @property
    def parse_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_spec

    @property
    def size(self) -> int:
        """How many different values there are."""
        return self.categorical_column.size

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        """The values as whole numbers, of shape (examples, steps, values), -1 where there is none."""
        found = self.categorical_column.ids(features)
        return found[..., tf.newaxis] if found.shape.rank == 2 else found

    def weights(self, features: Mapping[str, Any]) -> None:
        """All values count 1."""

    def lengths(self, features: Mapping[str, Any]) -> tf.Tensor:
        """How many steps each example has, int64: up to the last one with a value."""
        there = self.categorical_column.given(features)[1]
        return lengths_of(tf.reduce_any(there, axis=-1) if there.shape.rank == 3 else there)


@dataclass(frozen=True)
class SequenceNumeric(Column):
    """See `sequence_numeric_column`."""

    key: str
    shape: tuple[int, ...] = (1,)
    default_value: float = 0.0
    dtype: tf.DType = tf.float32
    normalizer_fn: Callable[[tf.Tensor], tf.Tensor] | None = None

    @property
    def name(self) -> str:
        return self.key

    @property
    def parse_spec(self) -> dict[str, Any]:
        return {self.key: tf.io.VarLenFeature(self.dtype)}

    def sequence(self, features: Mapping[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """The numbers, of shape (examples, steps, width), and how many steps each example has."""
        values = raw(features, self.key, missing=0)
        if values.dtype == tf.string:
            raise ModelError(f"sequence_numeric_column({self.key!r}): the feature is text, not numbers")
        given, width = features[self.key], tf.TensorShape(self.shape).num_elements()
        if isinstance(given, tf.SparseTensor | tf.RaggedTensor):
            sparse = given.to_sparse() if isinstance(given, tf.RaggedTensor) else given
            ones = tf.SparseTensor(sparse.indices, tf.ones_like(sparse.values, tf.int32), sparse.dense_shape)
            there = tf.sparse.to_dense(ones) > 0
        else:
            there = tf.ones_like(values, tf.bool)
        numbers = tf.cast(values if self.normalizer_fn is None else self.normalizer_fn(values), tf.float32)
        numbers = tf.where(there, numbers, tf.cast(self.default_value, tf.float32))
        steps = [tf.shape(values)[0], -1, width]
        return tf.reshape(numbers, steps), lengths_of(tf.reduce_any(tf.reshape(there, steps), axis=-1))


def lengths_of(there: tf.Tensor) -> tf.Tensor:
    """How many steps each example has: up to the last one where something is there.

    Args:
        there: of shape (examples, steps).

    Returns:
        of shape (examples,), int64.
    """
    numbers = tf.range(1, tf.shape(there, out_type=tf.int64)[1] + 1)
    return tf.reduce_max(tf.where(there, numbers, tf.zeros_like(numbers)), axis=1)
