"""What feature columns make of the features; `feature_column` has the functions that make them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import keras
import tensorflow as tf

from prototrain.errors import ModelError

_COMBINERS = ("mean", "sqrtn", "sum")


class Column:
    """What of the features a model sees."""

    @property
    def name(self) -> str:
        """By which columns are ordered, and what layers of theirs are called."""
        raise NotImplementedError

    @property
    def parse_spec(self) -> dict[str, Any]:
        """How the features that it needs are read from a serialized `tf.train.Example`."""
        raise NotImplementedError


class Dense(Column):
    """A column that is numbers."""

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Its numbers, of shape (examples, width)."""
        raise NotImplementedError


class Categorical(Column):
    """A column that is whole numbers from 0 to `size` - 1."""

    size: int

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Its numbers, of shape (examples, values), int64, -1 where there is no value."""
        raise NotImplementedError

    def given(self, features: Mapping[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Its numbers, and where the examples have values; a value that is not in a vocabulary is one, too."""
        ids = self.ids(features)
        return ids, ids >= 0


@dataclass(frozen=True)
class Numeric(Dense):
    """See `numeric_column`."""

    key: str
    shape: tuple[int, ...] = (1,)
    default_value: Any = None
    dtype: tf.DType = tf.float32
    normalizer_fn: Callable[[tf.Tensor], tf.Tensor] | None = None

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
        value = _raw(features, self.key)
        if value.dtype == tf.string:
            raise ModelError(f"numeric_column({self.key!r}): the feature is text; tf.strings.to_number makes numbers")
        if self.normalizer_fn is not None:
            value = self.normalizer_fn(value)
        return tf.reshape(tf.cast(value, tf.float32), [-1, tf.TensorShape(self.shape).num_elements()])


@dataclass(frozen=True)
class Bucketized(Dense, Categorical):
    """See `bucketized_column`."""

    source_column: Numeric
    boundaries: tuple[float, ...]

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
class _OfOneFeature(Categorical):
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
        values = _discrete(features, self.key)
        return self._numbered(values), ~_is_missing(values)

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Vocabulary(_OfOneFeature):
    """See `categorical_column_with_vocabulary_list`."""

    vocabulary_list: tuple[Any, ...]
    dtype: tf.DType
    default_value: int = -1
    num_oov_buckets: int = 0

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
class Hashed(_OfOneFeature):
    """See `categorical_column_with_hash_bucket`."""

    hash_bucket_size: int
    dtype: tf.DType = tf.string

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.hash_bucket_size

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        return tf.cast(keras.layers.Hashing(self.hash_bucket_size)(values), tf.int64)


@dataclass(frozen=True)
class Identity(_OfOneFeature):
    """See `categorical_column_with_identity`."""

    number_buckets: int
    default_value: int | None = None

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.number_buckets

    def _numbered(self, values: tf.Tensor) -> tf.Tensor:
        if values.dtype == tf.string:
            raise ModelError(f"categorical_column_with_identity({self.key!r}): the feature is text, not whole numbers")
        fits = (values >= 0) & (values < self.size)
        if self.default_value is not None:
            return tf.where(fits, values, tf.constant(self.default_value, tf.int64))
        check = tf.debugging.Assert(
            tf.reduce_all(fits | _is_missing(values)),
            [f"{self.key} has values outside of 0 to {self.size - 1}", values],
        )
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(values)


@dataclass(frozen=True)
class Crossed(Categorical):
    """See `crossed_column`."""

    keys: tuple[Any, ...]
    hash_bucket_size: int
    hash_key: int | None = None

    @property
    def name(self) -> str:
        return "_X_".join(sorted(self._leaves()))

    def _leaves(self) -> list[str]:
        parts = [key._leaves() if isinstance(key, Crossed) else key for key in self.keys]
        return [name for part in parts for name in (part if isinstance(part, list) else [getattr(part, "name", part)])]

    @property
    def parse_spec(self) -> dict[str, Any]:
        specs = [{k: tf.io.VarLenFeature(tf.string)} if isinstance(k, str) else k.parse_spec for k in self.keys]
        return {key: feature for spec in specs for key, feature in spec.items()}

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.hash_bucket_size

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        # The hash depends on the order: as in TensorFlow, features themselves come last.
        parts = [_sparse(part, features) for part in sorted(self._parts(), key=lambda part: isinstance(part, str))]
        # What keras.layers.HashedCrossing calls, which takes single values only.
        crossed = tf.sparse.cross_hashed(parts, self.hash_bucket_size, self.hash_key)
        return tf.sparse.to_dense(crossed, default_value=-1)

    def _parts(self) -> list[Any]:
        found = [key._parts() if isinstance(key, Crossed) else [key] for key in self.keys]
        return [part for parts in found for part in parts]


@dataclass(frozen=True)
class Indicator(Dense):
    """See `indicator_column`."""

    categorical_column: Categorical

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_indicator"

    @property
    def parse_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_spec

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        return tf.reduce_sum(tf.one_hot(self.categorical_column.ids(features), self.categorical_column.size), axis=1)


@dataclass(frozen=True)
class Embedded(Dense):
    """See `embedding_column`."""

    categorical_column: Categorical
    dimension: int
    combiner: str = "mean"
    initializer: Any = None
    max_norm: float | None = None
    trainable: bool = True
    default: ClassVar[type] = keras.initializers.TruncatedNormal

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_embedding"

    @property
    def parse_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_spec

    def dense(self, features: Mapping[str, Any]) -> tf.Tensor:
        start = self.default(0.0, self.dimension**-0.5) if self.initializer is None else self.initializer
        ids, size = self.categorical_column.ids(features), self.categorical_column.size
        layer = keras.layers.Embedding(
            size, self.dimension, embeddings_initializer=start, trainable=self.trainable, name=layer_name(self)
        )
        return combined(layer, ids, self.combiner, self.max_norm)


# -- of several columns -----------------------------------------------------------------------------------------------


def input_layer(features: Mapping[str, Any], feature_columns: Iterable[Any]) -> tf.Tensor:
    """The numbers of all columns side by side, in the order of their names; what a network of layers begins with.

    Raises:
        ModelError: there are no columns, or one is no numbers.
    """
    parts = []
    for column in ordered(feature_columns):
        if not isinstance(column, Dense):
            raise ModelError(
                f"the column {column.name!r} is categorical: a network of layers takes numbers, so give it an "
                "indicator_column or an embedding_column of it"
            )
        parts.append(column.dense(features))
    return tf.concat(parts, axis=1)


def linear_model(features: Mapping[str, Any], feature_columns: Iterable[Any], units: int, combiner: str) -> tf.Tensor:
    """A weighted sum of all columns, and a bias; all weights are 0 at first."""
    total = tf.convert_to_tensor(tf.Variable(lambda: tf.zeros([units]), name="bias_weights"))
    for column in ordered(feature_columns):
        if isinstance(column, Categorical):
            layer = keras.layers.Embedding(column.size, units, embeddings_initializer="zeros", name=layer_name(column))
            total += combined(layer, column.ids(features), combiner)
        else:
            layer = keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros", name=layer_name(column))
            total += layer(column.dense(features))
    return total


def ordered(feature_columns: Iterable[Any]) -> list[Any]:
    """Columns in the order of their names.

    Raises:
        ModelError: there are none, or two have one name.
    """
    given = feature_columns if isinstance(feature_columns, Iterable) else [feature_columns]
    found = sorted(map(adopted, given), key=lambda column: str(column.name))
    names = [column.name for column in found]
    double = [name for one, name in pairwise(names) if one == name]
    if double:
        raise ModelError(f"feature_columns has two columns {double[0]!r}")
    if not found:
        raise ModelError("feature_columns is empty")
    return found


def combined(layer: Any, ids: tf.Tensor, combiner: str, max_norm: float | None = None) -> tf.Tensor:
    """The vectors of each example's ids put together; zeros where it has none."""
    vectors = layer(tf.maximum(ids, 0))
    if max_norm is not None:
        vectors = tf.clip_by_norm(vectors, max_norm, axes=-1)
    there = tf.cast(ids >= 0, vectors.dtype)[..., tf.newaxis]
    number = tf.maximum(tf.reduce_sum(there, axis=1), 1.0)
    total = tf.reduce_sum(vectors * there, axis=1)
    return total if combiner == "sum" else total / (number if combiner == "mean" else tf.sqrt(number))


def adopted(column: Any) -> Any:
    """A column of this module; one of `tf.feature_column` is taken over by its fields.

    Raises:
        ModelError: it is neither.
    """
    if isinstance(column, Column):
        return column
    fields: dict[str, Any] = getattr(column, "_asdict", dict)()  # those of TensorFlow are named tuples
    kind = _OF_TENSORFLOW.get(type(column).__name__)
    if not fields or kind is None:
        raise ModelError(
            f"feature_columns: {type(column).__name__} is no column; prototrain.estimator.feature_column makes them"
        )
    known = {name: value for name, value in fields.items() if name in kind.__dataclass_fields__}
    if "vocabulary_file" in fields:
        from prototrain.estimator.feature_column import categorical_column_with_vocabulary_file  # which stands on this

        given = {name: value for name, value in fields.items() if name not in ("num_oov_buckets", "file_format")}
        return categorical_column_with_vocabulary_file(**given, num_oov_buckets=fields["num_oov_buckets"] or 0)
    for name in known.keys() & {"source_column", "categorical_column"}:
        known[name] = adopted(known[name])
    if "keys" in known:
        known["keys"] = tuple(key if isinstance(key, str) else adopted(key) for key in known["keys"])
    return kind(**known)


_OF_TENSORFLOW: dict[str, Any] = {
    "NumericColumn": Numeric,
    "BucketizedColumn": Bucketized,
    "VocabularyListCategoricalColumn": Vocabulary,
    "VocabularyFileCategoricalColumn": Vocabulary,
    "HashedCategoricalColumn": Hashed,
    "IdentityCategoricalColumn": Identity,
    "CrossedColumn": Crossed,
    "IndicatorColumn": Indicator,
    "EmbeddingColumn": Embedded,
}


def categorical(column: Any, who: str) -> Any:
    """A categorical column; a ModelError says who asks for one if it is of another kind."""
    found = adopted(column)
    if not isinstance(found, Categorical):
        raise ModelError(f"{who} takes a categorical column, not {type(found).__name__}")
    return found


def check_combiner(combiner: str) -> None:
    """Fail if there is no such combiner."""
    if combiner not in _COMBINERS:
        raise ModelError(f"there is no combiner {combiner!r}; there are {', '.join(_COMBINERS)}")


def layer_name(column: Column) -> str:
    """The name of the layer that has a column's weights: Keras and TensorFlow do not take every character."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", str(column.name)).lstrip("_-") or "column"


# -- features ---------------------------------------------------------------------------------------------------------


def _raw(features: Mapping[str, Any], key: str) -> Any:
    """A feature with a dimension of values."""
    if not isinstance(features, Mapping) or key not in features:
        there = ", ".join(features) if isinstance(features, Mapping) else type(features).__name__
        raise ModelError(f"there is no feature {key!r} for its column; input_fn gives {there}")
    value = features[key]
    missing: Any = "" if value.dtype == tf.string else -1
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value, default_value=tf.constant(missing, value.dtype))
    elif isinstance(value, tf.RaggedTensor):
        value = value.to_tensor(default_value=tf.constant(missing, value.dtype))
    value = tf.convert_to_tensor(value)
    return value[:, tf.newaxis] if value.shape.rank == 1 else value


def _discrete(features: Mapping[str, Any], key: str) -> tf.Tensor:
    value = _raw(features, key)
    if value.dtype != tf.string and not value.dtype.is_integer:
        raise ModelError(f"the feature {key!r} must be texts or whole numbers for its column, not {value.dtype.name}")
    return value if value.dtype == tf.string else tf.cast(value, tf.int64)


def _is_missing(values: tf.Tensor) -> tf.Tensor:
    return values == ("" if values.dtype == tf.string else tf.constant(-1, values.dtype))


def _sparse(part: Any, features: Mapping[str, Any]) -> tf.SparseTensor:
    if isinstance(part, str):
        values = _discrete(features, part)
        padded = isinstance(features[part], tf.SparseTensor | tf.RaggedTensor)
        there = ~_is_missing(values) if padded else tf.ones_like(values, tf.bool)
    else:
        values, there = part.given(features)
    where = tf.where(there)
    return tf.SparseTensor(where, tf.gather_nd(values, where), tf.shape(values, out_type=tf.int64))
