"""Feature columns; `prototrain.estimator.feature_column` has their public names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError

_COMBINERS = ("mean", "sqrtn", "sum")
_set = object.__setattr__  # a field of a frozen column, in its __post_init__


class Column:
    """A part of the features that a model sees.

    Attributes:
        name: orders the columns and names their layers.
        parse_spec: the features that it reads, as `tf.io.parse_example` takes them.
    """

    name: str
    parse_spec: dict[str, Any]


class Dense(Column):
    """A column that is numbers."""

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Return its numbers, of shape (examples, width)."""
        raise NotImplementedError


class Categorical(Column):
    """A column that is whole numbers from 0 to `size` - 1."""

    size: int

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Return its numbers, of shape (examples, values), int64, -1 where there is no value."""
        raise NotImplementedError

    def given(self, features: Mapping[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Return its numbers, and where the examples have values; a value that is not in a vocabulary is one, too."""
        ids = self.ids(features)
        return ids, ids >= 0


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
        _set(self, "shape", (self.shape,) if isinstance(self.shape, int) else tuple(self.shape))

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.key

    @property
    def width(self) -> int:
        """How many numbers an example has."""
        return tf.TensorShape(self.shape).num_elements() or 1

    @property
    def parse_spec(self) -> dict[str, Any]:  # type: ignore[override]
        default = self.default_value
        if default is not None and not hasattr(default, "__len__"):
            default = tf.fill(self.shape, default).numpy().tolist()
        return {self.key: tf.io.FixedLenFeature(self.shape, self.dtype, default)}

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        value = _raw(features, self.key)
        if value.dtype == tf.string:
            raise ModelError(f"numeric_column({self.key!r}): the feature is text; tf.strings.to_number makes numbers")
        if self.normalizer_fn is not None:
            value = self.normalizer_fn(value)
        return tf.reshape(tf.cast(value, tf.float32), [-1, self.width])


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
        _set(self, "boundaries", tuple(map(float, boundaries)))

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.source_column.name}_bucketized"

    @property
    def parse_spec(self) -> dict[str, Any]:  # type: ignore[override]
        return self.source_column.parse_spec

    @property
    def size(self) -> int:  # type: ignore[override]
        return (len(self.boundaries) + 1) * self.source_column.width

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        buckets = self._buckets(features)
        return buckets + tf.range(buckets.shape[1], dtype=tf.int64) * (len(self.boundaries) + 1)

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        chosen = tf.one_hot(self._buckets(features), len(self.boundaries) + 1)
        return tf.reshape(chosen, [-1, self.size])

    def _buckets(self, features: Mapping[str, Any]) -> tf.Tensor:
        layer = keras.layers.Discretization(bin_boundaries=list(self.boundaries))
        return tf.cast(layer(self.source_column.dense(features)), tf.int64)


@dataclass(frozen=True)
class OfOneFeature(Categorical):
    """Base of categorical columns that read one feature."""

    key: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.key

    @property
    def parse_spec(self) -> dict[str, Any]:  # type: ignore[override]
        return {self.key: tf.io.VarLenFeature(getattr(self, "dtype", tf.int64))}

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        ids, there = self.given(features)
        return tf.where(there, ids, tf.constant(-1, tf.int64))

    def given(self, features: Mapping[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        values = _discrete(features, self.key)
        return self._numbered(values), ~_is_missing(values)

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
        _set(self, "vocabulary_list", words)
        _set(self, "dtype", self.dtype or (tf.string if isinstance(words[0], str | bytes) else tf.int64))

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
        what = [f"{self.key} has values outside of 0 to {self.size - 1}", values]
        check = tf.debugging.Assert(tf.reduce_all(fits | _is_missing(values)), what)
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
        _set(self, "keys", parts)

    @property
    def name(self) -> str:  # type: ignore[override]
        return "_X_".join(sorted(key if isinstance(key, str) else key.name for key in self.keys))

    @property
    def parse_spec(self) -> dict[str, Any]:  # type: ignore[override]
        specs = [{k: tf.io.VarLenFeature(tf.string)} if isinstance(k, str) else k.parse_spec for k in self.keys]
        return {key: feature for spec in specs for key, feature in spec.items()}

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.hash_bucket_size

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        parts = []
        # The hash depends on the order: as in TensorFlow, features themselves come last.
        for part in sorted(self.keys, key=lambda part: isinstance(part, str)):
            if isinstance(part, str):
                values = _discrete(features, part)
                padded = isinstance(features[part], tf.SparseTensor | tf.RaggedTensor)
                there = ~_is_missing(values) if padded else tf.ones_like(values, tf.bool)
            else:
                values, there = part.given(features)
            where = tf.where(there)
            parts.append(tf.SparseTensor(where, tf.gather_nd(values, where), tf.shape(values, out_type=tf.int64)))
        # What keras.layers.HashedCrossing calls, which takes single values only.
        crossed = tf.sparse.cross_hashed(parts, self.hash_bucket_size, self.hash_key)
        return tf.sparse.to_dense(crossed, default_value=-1)


# -- numbers of categorical columns -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfCategorical(Dense):
    """Base of columns that make numbers of a categorical one."""

    categorical_column: Categorical

    def __post_init__(self) -> None:
        if not isinstance(checked(self.categorical_column), Categorical):
            kind = type(self.categorical_column).__name__
            raise ModelError(f"{self.suffix}_column takes a categorical column, not {kind}")

    suffix = ""

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.categorical_column.name}_{self.suffix}"

    @property
    def parse_spec(self) -> dict[str, Any]:  # type: ignore[override]
        return self.categorical_column.parse_spec


@dataclass(frozen=True)
class Indicator(OfCategorical):
    """A categorical column as one number for each value: how often it is there."""

    suffix = "indicator"

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        source = self.categorical_column
        return tf.reduce_sum(tf.one_hot(source.ids(features), source.size), axis=-2)


@dataclass(frozen=True)
class Embedded(OfCategorical):
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

    dimension: int
    combiner: str = "mean"
    initializer: Any = None
    max_norm: float | None = None
    trainable: bool = True

    suffix = "embedding"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_combiner(self.combiner)

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        source, start = self.categorical_column, self.initializer
        if start is None:
            start = keras.initializers.TruncatedNormal(0.0, self.dimension**-0.5)
        layer = keras.layers.Embedding(
            source.size,
            self.dimension,
            embeddings_initializer=start,
            trainable=self.trainable,
            name=_layer_name(self.name),
        )
        return _combined(layer, source.ids(features), self.combiner, self.max_norm)


def _combined(layer: Any, ids: tf.Tensor, combiner: str, max_norm: float | None = None) -> tf.Tensor:
    """Put the vectors of each example's ids together; zeros where it has none.

    Args:
        layer: from ids to vectors.
        ids: of shape (..., values), -1 where there is none.
        combiner: "sum", "mean", or "sqrtn".
        max_norm: longer vectors are shortened to this L2 norm.

    Returns:
        of shape (..., width).
    """
    vectors = layer(tf.maximum(ids, 0))
    if max_norm is not None:
        vectors = tf.clip_by_norm(vectors, max_norm, axes=-1)
    given = tf.cast(ids >= 0, vectors.dtype)[..., tf.newaxis]
    total, count = tf.reduce_sum(vectors * given, axis=-2), tf.reduce_sum(given, axis=-2)
    if combiner == "sum":
        return total
    return tf.math.divide_no_nan(total, count if combiner == "mean" else tf.sqrt(count))


def _layer_name(name: str) -> str:
    """Return a name for the layer of a column: Keras and TensorFlow do not take every character."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("_-") or "column"


# -- features as columns read them: dense, with a dimension of values -------------------------------------------------


def _raw(features: Mapping[str, Any], key: str) -> tf.Tensor:
    """Return a feature with a dimension of values: an empty text or -1 where a sparse or ragged one has none."""
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
    """Return a feature of texts or whole numbers, these as int64."""
    value = _raw(features, key)
    if value.dtype != tf.string and not value.dtype.is_integer:
        raise ModelError(f"the feature {key!r} must be texts or whole numbers for its column, not {value.dtype.name}")
    return value if value.dtype == tf.string else tf.cast(value, tf.int64)


def _is_missing(values: tf.Tensor) -> tf.Tensor:
    return values == ("" if values.dtype == tf.string else tf.constant(-1, values.dtype))


# -- what a model does with several columns ---------------------------------------------------------------------------


def input_layer(features: Mapping[str, Any], feature_columns: Iterable[Any]) -> tf.Tensor:
    """Return the numbers of all columns side by side, in the order of their names, for a network of layers.

    Raises:
        ModelError: there are no columns, or one is no numbers.
    """
    return tf.concat([_numbers(column, features) for column in ordered(feature_columns)], axis=1)


def linear_model(features: Mapping[str, Any], feature_columns: Iterable[Any], units: int, combiner: str) -> tf.Tensor:
    """Return a weighted sum of all columns, and a bias; all weights are 0 at first."""
    total = tf.convert_to_tensor(tf.Variable(lambda: tf.zeros([units]), name="bias_weights"))
    for column in ordered(feature_columns):
        name = _layer_name(column.name)
        if isinstance(column, Categorical):
            layer = keras.layers.Embedding(column.size, units, embeddings_initializer="zeros", name=name)
            total += _combined(layer, column.ids(features), combiner)
        else:
            layer = keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros", name=name)
            total += layer(_numbers(column, features))
    return total


def ordered(feature_columns: Iterable[Any]) -> list[Any]:
    """Return columns in the order of their names.

    Raises:
        ModelError: there are none, or two have one name.
    """
    given = feature_columns if isinstance(feature_columns, Iterable) else [feature_columns]
    found = sorted(map(checked, given), key=lambda column: str(column.name))
    for one, other in pairwise(found):
        if one.name == other.name:
            raise ModelError(f"feature_columns has two columns {one.name!r}")
    if not found:
        raise ModelError("feature_columns is empty")
    return found


def checked(column: Any) -> Any:
    """Return a column of this package.

    Raises:
        ModelError: it is something else.
    """
    if isinstance(column, Column):
        return column
    raise ModelError(
        f"feature_columns: {type(column).__name__} is no column of prototrain.estimator.feature_column, which has the "
        "names of tf.feature_column"
    )


def check_combiner(combiner: str) -> None:
    """Check that there is such a combiner."""
    if combiner not in _COMBINERS:
        raise ModelError(f"there is no combiner {combiner!r}; there are {', '.join(_COMBINERS)}")


def _numbers(column: Any, features: Mapping[str, Any]) -> tf.Tensor:
    if isinstance(column, Dense):
        return column.dense(features)
    raise ModelError(
        f"the column {column.name!r} is categorical: a network of layers takes numbers, so give it an "
        "indicator_column or an embedding_column of it"
    )
