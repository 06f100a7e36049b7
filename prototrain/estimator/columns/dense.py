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
from prototrain.model.keras_hooks import present_call


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
        chosen, weights = tf.one_hot(source.ids(features), source.size), source.weights(features)
        return tf.reduce_sum(chosen if weights is None else chosen * weights[..., tf.newaxis], axis=-2)


@dataclass(frozen=True)
class Table:
    """The vectors of one or several embedding columns.

    Attributes:
        name: of the layer that has them.
        size: how many there are.
        dimension: of each.
        initializer: of Keras; None for a truncated normal one with a standard deviation of 1/sqrt(dimension).
        trainable: whether they are learned.
    """

    name: str
    size: int
    dimension: int
    initializer: Any
    trainable: bool

    def layer(self) -> keras.layers.Layer:
        """A new layer with them."""
        start = self.initializer
        if start is None:
            start = keras.initializers.TruncatedNormal(0.0, self.dimension**-0.5)
        return keras.layers.Embedding(
            self.size, self.dimension, embeddings_initializer=start, trainable=self.trainable, name=self.name
        )


class _Vectors(Dense):
    """Base of columns of vectors, for the fields that both kinds have."""

    categorical_column: Categorical
    combiner: str
    max_norm: float | None

    @property
    def parse_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_spec

    def _layer(self) -> Any:
        """From numbers to vectors."""
        raise NotImplementedError

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        source = self.categorical_column
        ids, weights = source.ids(features), source.weights(features)
        return combined(self._layer(), ids, self.combiner, self.max_norm, weights)


@dataclass(frozen=True)
class Embedded(_Vectors):
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

    def _layer(self) -> Any:
        size = self.categorical_column.size
        return Table(layer_name(self.name), size, self.dimension, self.initializer, self.trainable).layer()


@dataclass(frozen=True)
class SharedEmbedded(_Vectors):
    """See `shared_embeddings`."""

    categorical_column: Categorical
    table: Table
    combiner: str = "mean"
    max_norm: float | None = None

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_shared_embedding"

    def _layer(self) -> Any:
        # All columns of one call of the model_fn share it, whichever comes first.
        call = present_call()
        made = _outside if call is None else call.shared
        if self.table not in made:
            made[self.table] = self.table.layer()
        return made[self.table]


_outside: dict[Any, Any] = {}
"""The layers of shared tables where no model is built."""
