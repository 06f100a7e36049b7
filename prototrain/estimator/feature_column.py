"""Feature columns with the names and the results of `tf.feature_column`.

Keras preprocessing layers compute the columns. Features may be dense, sparse or ragged tensors. As in
`tf.feature_column`, an empty string or -1 in a dense feature is a missing value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.errors import ModelError

__all__ = [
    "bucketized_column",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_vocabulary_list",
    "crossed_column",
    "embedding_column",
    "indicator_column",
    "input_layer",
    "make_parse_example_spec",
    "numeric_column",
]

_COMBINERS = ("mean", "sqrtn", "sum")


class Column:
    """Base class of feature columns.

    Attributes:
        name: determines the order of the columns and the names of their layers.
        parse_spec: the `tf.io.parse_example` specification of the features that the column reads.
    """

    name: str
    parse_spec: dict[str, Any]


class Dense(Column):
    """Base class of columns with a dense representation."""

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Return the column's values, of shape (examples, width)."""
        raise NotImplementedError


class Categorical(Column):
    """Base class of columns of integer ids.

    Attributes:
        size: the number of ids, which begin with 0.
    """

    size: int

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Return the ids, int64 of shape (examples, values), with -1 for missing values."""
        raise NotImplementedError

    def given(self, features: Mapping[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the ids and a mask of the values that are present, including out-of-vocabulary values."""
        ids = self.ids(features)
        return ids, ids >= 0


@dataclass(eq=False)
class Numeric(Dense):
    """A column of numbers.

    Attributes:
        key: the name of the feature.
        shape: the shape of the feature in one example.
        default_value: the value if a serialized `tf.train.Example` lacks the feature.
        dtype: the dtype of the feature in a serialized `tf.train.Example`.
        normalizer_fn: a function from a batch of values to a batch of the same shape.
    """

    key: str
    shape: int | Sequence[int] = (1,)
    default_value: Any = None
    dtype: tf.DType = tf.float32
    normalizer_fn: Callable[[tf.Tensor], tf.Tensor] | None = None

    def __post_init__(self) -> None:
        self.name = self.key
        self.shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        self.width = math.prod(self.shape)
        default = self.default_value
        if default is not None:
            default = np.broadcast_to(default, self.shape).tolist()
        self.parse_spec = {self.key: tf.io.FixedLenFeature(self.shape, self.dtype, default)}

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        value = _raw(features, self.key)
        if isinstance(features[self.key], tf.SparseTensor | tf.RaggedTensor):
            raise ModelError(f"numeric_column({self.key!r}): the feature is sparse or ragged; make it a dense tensor")
        if value.dtype == tf.string:
            raise ModelError(f"numeric_column({self.key!r}): the feature is text; tf.strings.to_number makes numbers")
        if self.normalizer_fn is not None:
            value = self.normalizer_fn(value)
        if value.shape[1:].num_elements() not in (self.width, None):
            raise ModelError(f"numeric_column({self.key!r}): an example has shape {value.shape[1:]}, not {self.shape}")
        return tf.reshape(tf.cast(value, tf.float32), [-1, self.width])


@dataclass(eq=False)
class Bucketized(Dense, Categorical):
    """A numeric column divided into buckets; each boundary belongs to the bucket above it.

    Attributes:
        source_column: a `numeric_column`.
        boundaries: the boundaries of the buckets in ascending order.

    Raises:
        ModelError: the boundaries are empty or do not ascend, or the source is not a `numeric_column`.
    """

    source_column: Numeric
    boundaries: Sequence[float]

    def __post_init__(self) -> None:
        source, boundaries = self.source_column, list(map(float, self.boundaries))
        if not isinstance(source, Numeric):
            raise ModelError(f"bucketized_column takes a numeric_column, not {type(source).__name__}")
        if boundaries != sorted(set(boundaries)) or not boundaries:
            raise ModelError(f"bucketized_column({source.key!r}): the boundaries must ascend, not {boundaries}")
        self.boundaries = boundaries
        self.name = f"{source.name}_bucketized"
        self.parse_spec = source.parse_spec
        self.size = (len(boundaries) + 1) * source.width

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        buckets = self._buckets(features)
        return buckets + tf.range(buckets.shape[1], dtype=tf.int64) * (len(self.boundaries) + 1)

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        chosen = tf.one_hot(self._buckets(features), len(self.boundaries) + 1)
        return tf.reshape(chosen, [-1, self.size])

    def _buckets(self, features: Mapping[str, Any]) -> tf.Tensor:
        layer = keras.layers.Discretization(bin_boundaries=self.boundaries)
        return tf.cast(layer(self.source_column.dense(features)), tf.int64)


class OfOneFeature(Categorical):
    """Base class of categorical columns that read one feature."""

    key: str

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        ids, there = self.given(features)
        return tf.where(there, ids, tf.constant(-1, tf.int64))

    def given(self, features: Mapping[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        values = _discrete(features, self.key)
        return self._numbered(values), _is_given(features[self.key], values)

    def _read(self, size: int, dtype: tf.DType) -> None:
        """Set the name, the size, and the parse specification for values of a dtype."""
        self.name, self.size = self.key, size
        self.parse_spec = {self.key: tf.io.VarLenFeature(dtype)}

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError


@dataclass(eq=False)
class Vocabulary(OfOneFeature):
    """A categorical column of strings or integers with a vocabulary.

    Attributes:
        key: the name of the feature.
        vocabulary_list: the words, strings or integers; the id of a word is its index.
        dtype: the dtype of the feature in a serialized `tf.train.Example`, or None for the type of the words.
        default_value: the id of out-of-vocabulary words; -1 ignores them.
        num_oov_buckets: the number of hash buckets for out-of-vocabulary words, with ids after the vocabulary.

    Raises:
        ModelError: the vocabulary is empty or has duplicates, or both `default_value` and `num_oov_buckets` are set.
    """

    key: str
    vocabulary_list: Sequence[Any]
    dtype: tf.DType | None = None
    default_value: int = -1
    num_oov_buckets: int = 0

    def __post_init__(self) -> None:
        words = [word.item() if isinstance(word, np.generic) else word for word in self.vocabulary_list]
        self.vocabulary_list = words
        if not words or len(set(words)) < len(words):
            raise ModelError(f"the vocabulary of the column {self.key!r} must have words, each of them once")
        if self.num_oov_buckets and self.default_value != -1:
            raise ModelError(f"the column {self.key!r} cannot have both num_oov_buckets and a default_value")
        self._is_text = isinstance(words[0], str | bytes)
        self._read(len(words) + self.num_oov_buckets, self.dtype or (tf.string if self._is_text else tf.int64))

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        words = self.vocabulary_list
        if self._is_text != (values.dtype == tf.string):
            raise ModelError(f"the column {self.key!r} has words like {words[0]!r}, the feature is {values.dtype.name}")
        # The lookup layers give 0 for out-of-vocabulary words and count the vocabulary from 1.
        if self._is_text:
            layer = keras.layers.StringLookup(vocabulary=words, oov_token="[not in the vocabulary]")
        else:
            layer = keras.layers.IntegerLookup(vocabulary=words)
        found = tf.cast(layer(values), tf.int64)
        other = tf.constant(self.default_value, tf.int64)
        if self.num_oov_buckets:
            texts = values if self._is_text else tf.as_string(values)
            other = len(words) + tf.strings.to_hash_bucket_fast(texts, self.num_oov_buckets)
        return tf.where(found == 0, other, found - 1)


@dataclass(eq=False)
class Hashed(OfOneFeature):
    """A categorical column of hashed strings or integers.

    Attributes:
        key: the name of the feature.
        hash_bucket_size: the number of buckets.
        dtype: the dtype of the feature in a serialized `tf.train.Example`.
    """

    key: str
    hash_bucket_size: int
    dtype: tf.DType = tf.string

    def __post_init__(self) -> None:
        self._read(self.hash_bucket_size, self.dtype)

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        return tf.cast(keras.layers.Hashing(self.hash_bucket_size)(values), tf.int64)


@dataclass(eq=False)
class Identity(OfOneFeature):
    """A categorical column whose values are integer ids from 0.

    Attributes:
        key: the name of the feature.
        num_buckets: the number of ids.
        default_value: the id for values out of range; if None, such a value is an error when the step runs.
    """

    key: str
    num_buckets: int
    default_value: int | None = None

    def __post_init__(self) -> None:
        self._read(self.num_buckets, tf.int64)

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        if values.dtype == tf.string:
            raise ModelError(f"categorical_column_with_identity({self.key!r}): the feature is text, not whole numbers")
        fits = (values >= 0) & (values < self.size)
        if self.default_value is not None:
            return tf.where(fits, values, tf.constant(self.default_value, tf.int64))
        what = [f"{self.key} has values outside of 0 to {self.size - 1}", values]
        check = tf.debugging.Assert(tf.reduce_all(fits | _is_missing(values)), what)
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(values)


@dataclass(eq=False)
class Crossed(Categorical):
    """A categorical column of hashed combinations of values.

    Attributes:
        keys: at least two feature names, bucketized columns, or categorical columns of one feature that are not hashed.
        hash_bucket_size: the number of buckets.
        hash_key: selects the hash function; None for the default.

    Raises:
        ModelError: there are fewer than two keys, or a key is of another type.
    """

    keys: Sequence[Any]
    hash_bucket_size: int
    hash_key: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or len(self.keys) < 2:
            raise ModelError(f"crossed_column needs at least two keys, not {self.keys!r}")
        self.parse_spec = {}
        for part in self.keys:
            if isinstance(part, Hashed) or not isinstance(part, str | Bucketized | OfOneFeature):
                raise ModelError(
                    "crossed_column takes keys of features, bucketized columns and categorical ones of one feature "
                    f"that are not hashed, not {type(part).__name__}"
                )
            self.parse_spec |= {part: tf.io.VarLenFeature(tf.string)} if isinstance(part, str) else part.parse_spec
        self.name = "_X_".join(sorted(part if isinstance(part, str) else part.name for part in self.keys))
        self.size = self.hash_bucket_size

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        parts = []
        # The hash depends on the order. As in TensorFlow, feature names come last.
        for part in sorted(self.keys, key=lambda part: isinstance(part, str)):
            if isinstance(part, str):
                values = _discrete(features, part)
                padded = isinstance(features[part], tf.SparseTensor | tf.RaggedTensor)
                there = _is_given(features[part], values) if padded else tf.ones_like(values, tf.bool)
            else:
                values, there = part.given(features)
            where = tf.where(there)
            parts.append(tf.SparseTensor(where, tf.gather_nd(values, where), tf.shape(values, out_type=tf.int64)))
        # keras.layers.HashedCrossing calls this function, but accepts single values only.
        crossed = tf.sparse.cross_hashed(parts, self.hash_bucket_size, self.hash_key)
        return tf.sparse.to_dense(crossed, default_value=-1)


@dataclass(eq=False)
class Indicator(Dense):
    """A multi-hot encoding of a categorical column: the count of each value per example.

    Raises:
        ModelError: the column is not categorical.
    """

    categorical_column: Categorical

    def __post_init__(self) -> None:
        _wrap(self, self.categorical_column, "indicator")

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        source = self.categorical_column
        return tf.reduce_sum(tf.one_hot(source.ids(features), source.size), axis=-2)


@dataclass(eq=False)
class Embedded(Dense):
    """An embedding of a categorical column.

    Attributes:
        categorical_column: a categorical column.
        dimension: the size of the embedding vectors.
        combiner: how to combine the vectors of one example: "mean", "sqrtn" or "sum".
        initializer: a Keras initializer; by default `TruncatedNormal` with a standard deviation of 1/sqrt(dimension).
        max_norm: the maximum L2 norm of a vector; longer vectors are scaled down.
        trainable: whether the embeddings are trained.

    Raises:
        ModelError: the column is not categorical, or the combiner is unknown.
    """

    categorical_column: Categorical
    dimension: int
    combiner: str = "mean"
    initializer: Any = None
    max_norm: float | None = None
    trainable: bool = True

    def __post_init__(self) -> None:
        _wrap(self, self.categorical_column, "embedding")
        check_combiner(self.combiner)

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        layer = keras.layers.Embedding(
            self.categorical_column.size,
            self.dimension,
            embeddings_initializer=self.initializer or keras.initializers.TruncatedNormal(0.0, self.dimension**-0.5),
            trainable=self.trainable,
            name=_layer_name(self.name),
        )
        return _combined(layer, self.categorical_column.ids(features), self.combiner, self.max_norm)


def _wrap(column: Column, source: Any, suffix: str) -> None:
    """Set the name and the parse specification of a dense column of a categorical column."""
    if not isinstance(source, Categorical):
        raise ModelError(f"{suffix}_column takes a categorical column, not {type(source).__name__}")
    column.name, column.parse_spec = f"{source.name}_{suffix}", source.parse_spec


def _combined(layer: Any, ids: tf.Tensor, combiner: str, max_norm: float | None = None) -> tf.Tensor:
    """Return the combined vectors of the ids of each example, (..., values); an example without values gets zeros."""
    vectors = layer(tf.maximum(ids, 0))
    if max_norm is not None:
        vectors = tf.clip_by_norm(vectors, max_norm, axes=-1)
    given = tf.cast(ids >= 0, vectors.dtype)[..., tf.newaxis]
    total, count = tf.reduce_sum(vectors * given, axis=-2), tf.reduce_sum(given, axis=-2)
    if combiner == "sum":
        return total
    return tf.math.divide_no_nan(total, count if combiner == "mean" else tf.sqrt(count))


def _layer_name(name: str) -> str:
    """Return a column's layer name without the characters that Keras and TensorFlow refuse."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("_-") or "column"


numeric_column = Numeric
bucketized_column = Bucketized
categorical_column_with_vocabulary_list = Vocabulary
categorical_column_with_hash_bucket = Hashed
categorical_column_with_identity = Identity
crossed_column = Crossed
indicator_column = Indicator
embedding_column = Embedded


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str | Path,
    vocabulary_size: int | None = None,
    dtype: tf.DType = tf.string,
    default_value: int | None = None,
    num_oov_buckets: int = 0,
) -> Vocabulary:
    """Return a categorical column with the vocabulary of a file, which is read now.

    Args:
        key: the name of the feature.
        vocabulary_file: the path of a UTF-8 file with one word per line.
        vocabulary_size: the number of lines to use, or None for all.
        dtype, default_value, num_oov_buckets: see `categorical_column_with_vocabulary_list`.

    Raises:
        ModelError: the file cannot be read, or has fewer than `vocabulary_size` words.
    """
    try:
        text = Path(vocabulary_file).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"the vocabulary of {key!r} cannot be read from {vocabulary_file}: {error}") from error
    # Not splitlines(), which also splits at the line separators of Unicode; TensorFlow reads such a line as one word.
    lines = text.replace("\r", "").removesuffix("\n").split("\n") if text else []
    if vocabulary_size is not None and vocabulary_size > len(lines):
        raise ModelError(f"{vocabulary_file} has {len(lines)} words, fewer than the vocabulary_size {vocabulary_size}")
    words = [word if dtype == tf.string else int(word) for word in lines[:vocabulary_size]]
    return Vocabulary(key, words, dtype, -1 if default_value is None else default_value, num_oov_buckets)


def _raw(features: Mapping[str, Any], key: str) -> tf.Tensor:
    """Return a feature as a dense tensor with a dimension of values; missing values are empty strings or -1."""
    if not isinstance(features, Mapping) or key not in features:
        there = ", ".join(features) if isinstance(features, Mapping) else type(features).__name__
        raise ModelError(f"there is no feature {key!r} for its column; input_fn gives {there}")
    value = features[key]
    missing = tf.constant("" if value.dtype == tf.string else -1, value.dtype)
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value, default_value=missing)
    elif isinstance(value, tf.RaggedTensor):
        value = value.to_tensor(default_value=missing)
    value = tf.convert_to_tensor(value)
    return value[:, tf.newaxis] if value.shape.rank == 1 else value


def _discrete(features: Mapping[str, Any], key: str) -> tf.Tensor:
    """Return a feature of strings or integers; integers are cast to int64."""
    value = _raw(features, key)
    if value.dtype != tf.string and not value.dtype.is_integer:
        raise ModelError(f"the feature {key!r} must be texts or whole numbers for its column, not {value.dtype.name}")
    return value if value.dtype == tf.string else tf.cast(value, tf.int64)


def _is_given(feature: Any, values: tf.Tensor) -> tf.Tensor:
    """Return where `values`, the dense form of a feature, were given. Only dense features use "" and -1 for none."""
    if isinstance(feature, tf.SparseTensor):
        given = tf.sparse.to_dense(feature.with_values(tf.ones_like(feature.values, tf.bool)), default_value=False)
    elif isinstance(feature, tf.RaggedTensor):
        given = tf.ones_like(feature, tf.bool).to_tensor(default_value=False)
    else:
        return ~_is_missing(values)
    return tf.reshape(given, tf.shape(values))


def _is_missing(values: tf.Tensor) -> tf.Tensor:
    return values == ("" if values.dtype == tf.string else tf.constant(-1, values.dtype))


def input_layer(features: Mapping[str, Any], feature_columns: Iterable[Any]) -> tf.Tensor:
    """Return the dense columns concatenated in the order of their names, as the input of a network.

    Args:
        features: tensors by feature name.
        feature_columns: dense columns; wrap categorical ones in `indicator_column` or `embedding_column`.

    Returns:
        A float tensor of shape (examples, sum of the widths).

    Raises:
        ModelError: there are no columns, two have the same name, or one is categorical.
    """
    columns = ordered(feature_columns)
    for column in columns:
        if not isinstance(column, Dense):
            raise ModelError(
                f"the column {column.name!r} is categorical: a network of layers takes numbers, so give it an "
                "indicator_column or an embedding_column of it"
            )
    return tf.concat([column.dense(features) for column in columns], axis=1)


def make_parse_example_spec(feature_columns: Iterable[Column]) -> dict[str, Any]:
    """Return the `tf.io.parse_example` specification of the columns' features.

    Raises:
        ModelError: two columns parse the same feature differently.
    """
    spec: dict[str, Any] = {}
    for column in map(checked, feature_columns):
        for key, feature in column.parse_spec.items():
            if spec.setdefault(key, feature) != feature:
                raise ModelError(f"two columns read the feature {key!r} in different ways: {spec[key]} and {feature}")
    return spec


def linear_model(features: Mapping[str, Any], feature_columns: Iterable[Any], units: int, combiner: str) -> tf.Tensor:
    """Return the weighted sum of all columns plus a bias, of shape (examples, units); weights start at 0."""
    total = tf.convert_to_tensor(tf.Variable(lambda: tf.zeros([units]), name="bias_weights"))
    for column in ordered(feature_columns):
        name = _layer_name(column.name)
        if isinstance(column, Categorical):
            layer = keras.layers.Embedding(column.size, units, embeddings_initializer="zeros", name=name)
            total += _combined(layer, column.ids(features), combiner)
        else:
            layer = keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros", name=name)
            total += layer(column.dense(features))
    return total


def ordered(feature_columns: Iterable[Any]) -> list[Any]:
    """Return columns sorted by name; they must have different names, and there must be one at least."""
    given = [feature_columns] if isinstance(feature_columns, Column) else feature_columns
    found = sorted(map(checked, given), key=lambda column: column.name)
    for one, other in pairwise(found):
        if one.name == other.name:
            raise ModelError(f"feature_columns has two columns {one.name!r}")
    if not found:
        raise ModelError("feature_columns is empty")
    return found


def checked(column: Any) -> Any:
    """Return a column, or raise an error if it is not of this module."""
    if not isinstance(column, Column):
        raise ModelError(f"feature_columns: {type(column).__name__} is no column of estimator.feature_column")
    return column


def check_combiner(combiner: str) -> None:
    """Raise an error if a combiner is unknown."""
    if combiner not in _COMBINERS:
        raise ModelError(f"there is no combiner {combiner!r}; there are {', '.join(_COMBINERS)}")
