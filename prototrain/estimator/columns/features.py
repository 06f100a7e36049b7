"""Columns that read features: numbers, buckets, words, and combinations of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.columns.base import Categorical, Dense, checked, discrete, is_missing, raw, set_field


@dataclass(frozen=True)
class Numeric(Dense):
    """Numbers as they are.

    Attributes:
        key: of the feature.
        shape: of the feature in one example.
        default_value: where it is missing in a serialized `tf.train.Example`.
        dtype: there.
        normalizer_fn: from the batch of numbers to another one of the same shape.
    """

    key: str
    shape: int | Sequence[int] = (1,)
    default_value: Any = None
    dtype: tf.DType = tf.float32
    normalizer_fn: Callable[[tf.Tensor], tf.Tensor] | None = None

    def __post_init__(self) -> None:
        set_field(self, "shape", (self.shape,) if isinstance(self.shape, int) else tuple(self.shape))

    @property
    def name(self) -> str:
        return self.key

    @property
    def parse_spec(self) -> dict[str, Any]:
        default = self.default_value
        if default is not None and not hasattr(default, "__len__"):
            default = tf.fill(self.shape, default).numpy().tolist()
        return {self.key: tf.io.FixedLenFeature(self.shape, self.dtype, default)}

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        value = raw(features, self.key)
        if value.dtype == tf.string:
            raise ModelError(f"numeric_column({self.key!r}): the feature is text; tf.strings.to_number makes numbers")
        if self.normalizer_fn is not None:
            value = self.normalizer_fn(value)
        return tf.reshape(tf.cast(value, tf.float32), [-1, tf.TensorShape(self.shape).num_elements()])


@dataclass(frozen=True)
class Bucketized(Dense, Categorical):
    """Numbers by the interval that they lie in; each boundary belongs to the interval above it.

    Attributes:
        source_column: a `numeric_column`.
        boundaries: in ascending order.

    Raises:
        ModelError: they are not, or the column is of another kind.
    """

    source_column: Numeric
    boundaries: Sequence[float]

    def __post_init__(self) -> None:
        source, boundaries = checked(self.source_column), list(self.boundaries)
        if not isinstance(source, Numeric):
            raise ModelError(f"bucketized_column takes a numeric_column, not {type(source).__name__}")
        if boundaries != sorted(set(boundaries)) or not boundaries:
            raise ModelError(f"bucketized_column({source.key!r}): the boundaries must ascend, not {boundaries}")
        set_field(self, "source_column", source)
        set_field(self, "boundaries", tuple(map(float, boundaries)))

    @property
    def name(self) -> str:
        return f"{self.source_column.name}_bucketized"

    @property
    def parse_spec(self) -> dict[str, Any]:
        return self.source_column.parse_spec

    @property
    def size(self) -> int:  # type: ignore[override]
        return (len(self.boundaries) + 1) * (tf.TensorShape(self.source_column.shape).num_elements() or 1)

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        buckets = self._buckets(features)
        first = tf.range(buckets.shape[1], dtype=tf.int64) * (len(self.boundaries) + 1)
        return buckets + first

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        chosen = tf.one_hot(self._buckets(features), len(self.boundaries) + 1)
        return tf.reshape(chosen, [-1, self.size])

    def _buckets(self, features: Mapping[str, Any]) -> tf.Tensor:
        layer = keras.layers.Discretization(bin_boundaries=list(self.boundaries))
        return tf.cast(layer(self.source_column.dense(features)), tf.int64)


@dataclass(frozen=True)
class OfOneFeature(Categorical):
    """Base of those that look at one feature."""

    key: str

    @property
    def name(self) -> str:
        return self.key

    @property
    def parse_spec(self) -> dict[str, Any]:
        return {self.key: tf.io.VarLenFeature(getattr(self, "dtype", tf.int64))}

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        ids, there = self.given(features)
        return tf.where(there, ids, tf.constant(-1, tf.int64))

    def given(self, features: Mapping[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        values = discrete(features, self.key)
        return self._numbered(values), ~is_missing(values)

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Vocabulary(OfOneFeature):
    """Words, or whole numbers, by their place in a list.

    Attributes:
        key: of the feature.
        vocabulary_list: the words.
        dtype: of the feature in a serialized `tf.train.Example`; that of the words if None.
        default_value: the place of a word that is not in the list; -1 leaves it out.
        num_oov_buckets: how many places, behind the list, such words are distributed over instead.

    Raises:
        ModelError: there are no words, or both a default and further places are asked for.
    """

    vocabulary_list: Sequence[Any]
    dtype: tf.DType | None = None
    default_value: int = -1
    num_oov_buckets: int = 0

    def __post_init__(self) -> None:
        words = tuple(word.item() if hasattr(word, "item") else word for word in self.vocabulary_list)
        if not words or len(set(words)) < len(words):
            raise ModelError(f"the vocabulary of the column {self.key!r} must have words, each of them once")
        if self.num_oov_buckets and self.default_value != -1:
            raise ModelError(f"the column {self.key!r} cannot have both num_oov_buckets and a default_value")
        set_field(self, "vocabulary_list", words)
        set_field(self, "dtype", self.dtype or (tf.string if isinstance(words[0], str | bytes) else tf.int64))

    @property
    def size(self) -> int:  # type: ignore[override]
        return len(self.vocabulary_list) + self.num_oov_buckets

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        words = list(self.vocabulary_list)
        is_text = isinstance(words[0], str | bytes)
        if is_text != (values.dtype == tf.string):
            raise ModelError(f"the column {self.key!r} has words like {words[0]!r}, the feature is {values.dtype.name}")
        # What is not in the vocabulary is 0 there, and the words are counted from 1.
        if is_text:
            layer = keras.layers.StringLookup(vocabulary=words, oov_token="[not in the vocabulary]")
        else:
            layer = keras.layers.IntegerLookup(vocabulary=words)
        found = tf.cast(layer(values), tf.int64)
        other = tf.constant(self.default_value, tf.int64)
        if self.num_oov_buckets:
            texts = values if is_text else tf.as_string(values)
            other = len(words) + tf.strings.to_hash_bucket_fast(texts, self.num_oov_buckets)
        return tf.where(found == 0, other, found - 1)


@dataclass(frozen=True)
class Hashed(OfOneFeature):
    """Words, or whole numbers, distributed over so many buckets by a hash.

    Attributes:
        key: of the feature.
        hash_bucket_size: how many buckets there are.
        dtype: of the feature in a serialized `tf.train.Example`.
    """

    hash_bucket_size: int
    dtype: tf.DType = tf.string

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.hash_bucket_size

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        return tf.cast(keras.layers.Hashing(self.hash_bucket_size)(values), tf.int64)


@dataclass(frozen=True)
class Identity(OfOneFeature):
    """Whole numbers from 0 as they are.

    Attributes:
        key: of the feature.
        num_buckets: how many there are.
        default_value: the number for other words; None makes them an error while training.
    """

    num_buckets: int
    default_value: int | None = None

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.num_buckets

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        if values.dtype == tf.string:
            raise ModelError(f"categorical_column_with_identity({self.key!r}): the feature is text, not whole numbers")
        fits = (values >= 0) & (values < self.size)
        if self.default_value is not None:
            return tf.where(fits, values, tf.constant(self.default_value, tf.int64))
        check = tf.debugging.Assert(
            tf.reduce_all(fits | is_missing(values)),
            [f"{self.key} has values outside of 0 to {self.size - 1}", values],
        )
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(values)


@dataclass(frozen=True)
class Crossed(Categorical):
    """Combinations of values, distributed over buckets by a hash.

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


def _sparse(part: Any, features: Mapping[str, Any]) -> tf.SparseTensor:
    if isinstance(part, str):
        values = discrete(features, part)
        padded = isinstance(features[part], tf.SparseTensor | tf.RaggedTensor)
        there = ~is_missing(values) if padded else tf.ones_like(values, tf.bool)
    else:
        values, there = part.given(features)
    where = tf.where(there)
    return tf.SparseTensor(where, tf.gather_nd(values, where), tf.shape(values, out_type=tf.int64))
