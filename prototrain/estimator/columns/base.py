"""What columns are, and what they have in common."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

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

    def weights(self, features: Mapping[str, Any]) -> tf.Tensor | None:
        """What each of its numbers counts, float32, of the shape of `ids`; None if all count 1."""
        return None


def combined(
    layer: Any, ids: tf.Tensor, combiner: str, max_norm: float | None = None, weights: tf.Tensor | None = None
) -> tf.Tensor:
    """The vectors of each example's ids put together; zeros where it has none.

    Args:
        layer: from ids to vectors.
        ids: of shape (..., values), -1 where there is none.
        combiner: "sum", "mean", or "sqrtn".
        max_norm: longer vectors are shortened to this L2 norm.
        weights: of the shape of the ids; None if all are 1.

    Returns:
        of shape (..., width).
    """
    vectors = layer(tf.maximum(ids, 0))
    if max_norm is not None:
        vectors = tf.clip_by_norm(vectors, max_norm, axes=-1)
    parts = tf.cast(ids >= 0, vectors.dtype)
    if weights is not None:
        # As in TensorFlow, a mean leaves out what has no weight above 0.
        parts *= tf.cast(weights if combiner == "sum" else tf.nn.relu(weights), vectors.dtype)
    parts = parts[..., tf.newaxis]
    total = tf.reduce_sum(vectors * parts, axis=-2)
    if combiner == "sum":
        return total
    if combiner == "mean":
        return tf.math.divide_no_nan(total, tf.reduce_sum(parts, axis=-2))
    return tf.math.divide_no_nan(total, tf.sqrt(tf.reduce_sum(parts**2, axis=-2)))


def check_combiner(combiner: str) -> None:
    """Fail if there is no such combiner."""
    if combiner not in _COMBINERS:
        raise ModelError(f"there is no combiner {combiner!r}; there are {', '.join(_COMBINERS)}")


def layer_name(column: Column) -> str:
    """The name of the layer that has a column's weights."""
    return as_layer_name(str(column.name))


def as_layer_name(name: str) -> str:
    """A name for a layer: Keras and TensorFlow do not take every character."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("_-") or "column"


set_field = object.__setattr__
"""Sets a field of a frozen column, in its `__post_init__`."""


def adopted(column: Any) -> Any:
    """A column of this package; one of `tf.feature_column` is taken over by its fields.

    Raises:
        ModelError: it is neither.
    """
    if isinstance(column, Column):
        return column
    from prototrain.estimator import feature_column  # which imports this

    fields: dict[str, Any] = getattr(column, "_asdict", dict)()  # those of TensorFlow are named tuples
    make = getattr(feature_column, _OF_TENSORFLOW.get(type(column).__name__, ""), None) if fields else None
    if make is None:
        raise ModelError(
            f"feature_columns: {type(column).__name__} is no column; prototrain.estimator.feature_column makes them"
        )
    known = inspect.signature(make).parameters
    fields = {_RENAMED.get(name, name): value for name, value in fields.items()}
    return make(**{name: value for name, value in fields.items() if name in known and value is not None})


_RENAMED = {"number_buckets": "num_buckets"}
_OF_TENSORFLOW = {
    "NumericColumn": "numeric_column",
    "BucketizedColumn": "bucketized_column",
    "VocabularyListCategoricalColumn": "categorical_column_with_vocabulary_list",
    "VocabularyFileCategoricalColumn": "categorical_column_with_vocabulary_file",
    "HashedCategoricalColumn": "categorical_column_with_hash_bucket",
    "IdentityCategoricalColumn": "categorical_column_with_identity",
    "CrossedColumn": "crossed_column",
    "WeightedCategoricalColumn": "weighted_categorical_column",
    "IndicatorColumn": "indicator_column",
    "EmbeddingColumn": "embedding_column",
}


def categorical(column: Any, who: str) -> Categorical:
    """A categorical column; a ModelError says who asks for one if it is of another kind."""
    found = adopted(column)
    if isinstance(found, Categorical):
        return found
    raise ModelError(f"{who} takes a categorical column, not {type(found).__name__}")


# -- features as columns read them: dense, with a dimension of values ---------------------------------------------


def raw(features: Mapping[str, Any], key: str, missing: Any = None) -> tf.Tensor:
    """A feature with a dimension of values.

    Args:
        features: by name.
        key: of the feature.
        missing: what stands where a sparse or ragged one has no value; an empty text or -1 if None.

    Raises:
        ModelError: there is no such feature.
    """
    if not isinstance(features, Mapping) or key not in features:
        there = ", ".join(features) if isinstance(features, Mapping) else type(features).__name__
        raise ModelError(f"there is no feature {key!r} for its column; input_fn gives {there}")
    value = features[key]
    if missing is None or value.dtype == tf.string:
        missing = "" if value.dtype == tf.string else -1
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value, default_value=tf.constant(missing, value.dtype))
    elif isinstance(value, tf.RaggedTensor):
        value = value.to_tensor(default_value=tf.constant(missing, value.dtype))
    value = tf.convert_to_tensor(value)
    return value[:, tf.newaxis] if value.shape.rank == 1 else value


def discrete(features: Mapping[str, Any], key: str) -> tf.Tensor:
    """A feature of texts or whole numbers, these as int64.

    Raises:
        ModelError: there is none, or it is of another kind.
    """
    value = raw(features, key)
    if value.dtype != tf.string and not value.dtype.is_integer:
        raise ModelError(f"the feature {key!r} must be texts or whole numbers for its column, not {value.dtype.name}")
    return value if value.dtype == tf.string else tf.cast(value, tf.int64)


def is_missing(values: tf.Tensor) -> tf.Tensor:
    """Where there is no value."""
    return values == ("" if values.dtype == tf.string else tf.constant(-1, values.dtype))
