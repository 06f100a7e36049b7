"""Base classes of columns, and functions that they share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError

_COMBINERS = ("mean", "sqrtn", "sum")


class Column:
    """A part of the features that a model sees."""

    @property
    def name(self) -> str:
        """The name, by which columns are ordered and their layers are named."""
        raise NotImplementedError

    @property
    def parse_spec(self) -> dict[str, Any]:
        """The features that it reads, as `tf.io.parse_example` takes them."""
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


def combined(layer: Any, ids: tf.Tensor, combiner: str, max_norm: float | None = None) -> tf.Tensor:
    """The vectors of each example's ids put together; zeros where it has none.

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


def check_combiner(combiner: str) -> None:
    """Fail if there is no such combiner."""
    if combiner not in _COMBINERS:
        raise ModelError(f"there is no combiner {combiner!r}; there are {', '.join(_COMBINERS)}")


def layer_name(name: str) -> str:
    """A name for the layer of a column: Keras and TensorFlow do not take every character."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("_-") or "column"


set_field = object.__setattr__
"""Sets a field of a frozen column, in its `__post_init__`."""


def checked(column: Any) -> Any:
    """A column of this package.

    Raises:
        ModelError: it is something else.
    """
    if isinstance(column, Column):
        return column
    raise ModelError(
        f"feature_columns: {type(column).__name__} is no column of prototrain.estimator.feature_column, which has the "
        "names of tf.feature_column"
    )


def categorical(column: Any, who: str) -> Categorical:
    """A categorical column; a ModelError says who asks for one if it is of another kind."""
    found = checked(column)
    if isinstance(found, Categorical):
        return found
    raise ModelError(f"{who} takes a categorical column, not {type(found).__name__}")


# -- features as columns read them: dense, with a dimension of values ---------------------------------------------


def raw(features: Mapping[str, Any], key: str) -> tf.Tensor:
    """A feature with a dimension of values: an empty text or -1 where a sparse or ragged one has none.

    Raises:
        ModelError: there is no such feature.
    """
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
    """Return a mask of missing values."""
    return values == ("" if values.dtype == tf.string else tf.constant(-1, values.dtype))


# -- what a model does with several columns ------------------------------------------------------------------------


def input_layer(features: Mapping[str, Any], feature_columns: Iterable[Any]) -> tf.Tensor:
    """The numbers of all columns side by side, in the order of their names; what a network of layers begins with.

    Raises:
        ModelError: there are no columns, or one is no numbers.
    """
    return tf.concat([_numbers(column, features) for column in ordered(feature_columns)], axis=1)


def _numbers(column: Any, features: Mapping[str, Any]) -> tf.Tensor:
    if isinstance(column, Dense):
        return column.dense(features)
    raise ModelError(
        f"the column {column.name!r} is categorical: a network of layers takes numbers, so give it an "
        "indicator_column or an embedding_column of it"
    )


def linear_model(features: Mapping[str, Any], feature_columns: Iterable[Any], units: int, combiner: str) -> tf.Tensor:
    """A weighted sum of all columns, and a bias; all weights are 0 at first."""
    total = tf.convert_to_tensor(tf.Variable(lambda: tf.zeros([units]), name="bias_weights"))
    for column in ordered(feature_columns):
        if isinstance(column, Categorical):
            layer = keras.layers.Embedding(
                column.size, units, embeddings_initializer="zeros", name=layer_name(column.name)
            )
            total += combined(layer, column.ids(features), combiner)
        else:
            layer = keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros", name=layer_name(column.name))
            total += layer(_numbers(column, features))
    return total


def ordered(feature_columns: Iterable[Any]) -> list[Any]:
    """Columns in the order of their names.

    Raises:
        ModelError: there are none, or two have one name.
    """
    given = feature_columns if isinstance(feature_columns, Iterable) else [feature_columns]
    found = sorted(map(checked, given), key=lambda column: str(column.name))
    names = [column.name for column in found]
    double = [name for one, name in pairwise(names) if one == name]
    if double:
        raise ModelError(f"feature_columns has two columns {double[0]!r}")
    if not found:
        raise ModelError("feature_columns is empty")
    return found
