"""Columns that make numbers of categorical ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from prototrain.estimator.columns.base import (
    Categorical,
    Dense,
    categorical,
    check_combiner,
    combined,
    layer_name,
    set_field,
)


@dataclass(frozen=True)
class Indicator(Dense):
    """A categorical column as one number for each value: how often it is there."""

    categorical_column: Categorical

    def __post_init__(self) -> None:
        set_field(self, "categorical_column", categorical(self.categorical_column, "indicator_column"))

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_indicator"

    @property
    def parse_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_spec

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        source = self.categorical_column
        return tf.reduce_sum(tf.one_hot(source.ids(features), source.size), axis=-2)


@dataclass(frozen=True)
class Embedded(Dense):
    """A categorical column as vectors that are learned.

    Attributes:
        categorical_column: a categorical column.
        dimension: of the vectors.
        combiner: how those of one example are put together: "mean", "sqrtn" or "sum".
        initializer: of Keras; by default a truncated normal one with a standard deviation of 1/sqrt(dimension).
        max_norm: longer vectors are shortened to this L2 norm.
        trainable: whether they are learned.

    Raises:
        ModelError: the column is of another kind, or there is no such combiner.
    """

    categorical_column: Categorical
    dimension: int
    combiner: str = "mean"
    initializer: Any = None
    max_norm: float | None = None
    trainable: bool = True

    def __post_init__(self) -> None:
        check_combiner(self.combiner)
        set_field(self, "categorical_column", categorical(self.categorical_column, "embedding_column"))

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_embedding"

    @property
    def parse_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_spec

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        source, start = self.categorical_column, self.initializer
        if start is None:
            start = keras.initializers.TruncatedNormal(0.0, self.dimension**-0.5)
        layer = keras.layers.Embedding(
            source.size,
            self.dimension,
            embeddings_initializer=start,
            trainable=self.trainable,
            name=layer_name(self.name),
        )
        return combined(layer, source.ids(features), self.combiner, self.max_norm)
