"""Categorical columns made of others: which values come together, and what each of them counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.columns.base import Categorical, categorical, checked, discrete, is_missing, raw, set_field
from prototrain.estimator.columns.single import Bucketized, Hashed, OfOneFeature


@dataclass(frozen=True)
class Crossed(Categorical):
    """Which values come together, distributed over so many buckets by a hash.

    Attributes:
        keys: at least two: keys of features, bucketized columns, or categorical ones of one feature that are not
            hashed.
        hash_bucket_size: how many buckets there are.
        hash_key: another one gives another hash.

    Raises:
        ModelError: there is only one, or one that is of another kind.
    """

    keys: Sequence[Any]
    hash_bucket_size: int
    hash_key: int | None = None

    def __post_init__(self) -> None:
        parts = tuple(key if isinstance(key, str) else checked(key) for key in self.keys)
        if isinstance(self.keys, str) or len(parts) < 2:
            raise ModelError(f"crossed_column needs at least two keys, not {self.keys!r}")
        for part in parts:
            if isinstance(part, Hashed) or not isinstance(part, str | Bucketized | OfOneFeature):
                raise ModelError(
                    "crossed_column takes keys of features, bucketized columns and categorical ones of one feature "
                    f"that are not hashed, not {type(part).__name__}"
                )
        set_field(self, "keys", parts)

    @property
    def name(self) -> str:
        return "_X_".join(sorted(key if isinstance(key, str) else key.name for key in self.keys))

    @property
    def parse_spec(self) -> dict[str, Any]:
        specs = [{k: tf.io.VarLenFeature(tf.string)} if isinstance(k, str) else k.parse_spec for k in self.keys]
        return {key: feature for spec in specs for key, feature in spec.items()}

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.hash_bucket_size

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        # The hash depends on the order: as in TensorFlow, features themselves come last.
        parts = [_sparse(part, features) for part in sorted(self.keys, key=lambda part: isinstance(part, str))]
        # What keras.layers.HashedCrossing calls, which takes single values only.
        crossed = tf.sparse.cross_hashed(parts, self.hash_bucket_size, self.hash_key)
        return tf.sparse.to_dense(crossed, default_value=-1)


@dataclass(frozen=True)
class Weighted(Categorical):
    """A categorical column whose values count as much as another feature says.

    Attributes:
        categorical_column: a categorical column.
        weight_feature_key: the feature that has a number for each value.
        dtype: of these in a serialized `tf.train.Example`.

    Raises:
        ModelError: the column is of another kind, or the numbers would be texts.
    """

    categorical_column: Categorical
    weight_feature_key: str
    dtype: tf.DType = tf.float32

    def __post_init__(self) -> None:
        if self.dtype == tf.string:
            raise ModelError(f"weighted_categorical_column: the weights {self.weight_feature_key!r} must be numbers")
        set_field(self, "categorical_column", categorical(self.categorical_column, "weighted_categorical_column"))

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_weighted_by_{self.weight_feature_key}"

    @property
    def parse_spec(self) -> dict[str, Any]:
        return {**self.categorical_column.parse_spec, self.weight_feature_key: tf.io.VarLenFeature(self.dtype)}

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.categorical_column.size

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        return self.categorical_column.ids(features)

    def weights(self, features: Mapping[str, Any]) -> tf.Tensor:
        ids, key = self.ids(features), self.weight_feature_key
        found = raw(features, key, missing=0)
        if found.dtype == tf.string:
            raise ModelError(f"weighted_categorical_column: the weights {key!r} are text, not numbers")
        if not found.shape.is_compatible_with(ids.shape):
            raise ModelError(
                f"weighted_categorical_column: the weights {key!r} are of shape {tuple(found.shape)}, the values of "
                f"{self.categorical_column.name!r} of {tuple(ids.shape)}; there must be one for each"
            )
        check = tf.debugging.assert_equal(
            tf.shape(found), tf.shape(ids), f"not one of the weights {key} for each value"
        )
        with tf.control_dependencies([] if check is None else [check]):
            return tf.cast(found, tf.float32)


def _sparse(part: Any, features: Mapping[str, Any]) -> tf.SparseTensor:
    if isinstance(part, str):
        values = discrete(features, part)
        padded = isinstance(features[part], tf.SparseTensor | tf.RaggedTensor)
        there = ~is_missing(values) if padded else tf.ones_like(values, tf.bool)
    else:
        values, there = part.given(features)
    where = tf.where(there)
    return tf.SparseTensor(where, tf.gather_nd(values, where), tf.shape(values, out_type=tf.int64))
