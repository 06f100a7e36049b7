"""The columns of `tf.feature_column`, and the input layers and linear models made of them.

TensorFlow computes the columns, with its meaning of missing values: an empty string or -1 in a dense feature. Columns
made by `tf.feature_column` itself are accepted, too. Features may be dense, sparse or ragged tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.system.tracebacks import cause
from prototrain.tf_private import FeatureTransformationCache, without_deprecation_warnings

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
    "weighted_categorical_column",
]

_of_tensorflow = tf.feature_column
bucketized_column = without_deprecation_warnings(_of_tensorflow.bucketized_column)
categorical_column_with_hash_bucket = without_deprecation_warnings(_of_tensorflow.categorical_column_with_hash_bucket)
categorical_column_with_identity = without_deprecation_warnings(_of_tensorflow.categorical_column_with_identity)
categorical_column_with_vocabulary_file = without_deprecation_warnings(
    _of_tensorflow.categorical_column_with_vocabulary_file
)
categorical_column_with_vocabulary_list = without_deprecation_warnings(
    _of_tensorflow.categorical_column_with_vocabulary_list
)
crossed_column = without_deprecation_warnings(_of_tensorflow.crossed_column)
embedding_column = without_deprecation_warnings(_of_tensorflow.embedding_column)
indicator_column = without_deprecation_warnings(_of_tensorflow.indicator_column)
make_parse_example_spec = without_deprecation_warnings(_of_tensorflow.make_parse_example_spec)
numeric_column = without_deprecation_warnings(_of_tensorflow.numeric_column)
weighted_categorical_column = without_deprecation_warnings(_of_tensorflow.weighted_categorical_column)


def input_layer(features: Mapping[str, Any], feature_columns: Iterable[Any]) -> tf.Tensor:
    """Return the dense columns concatenated in the order of their names, as the input of a network.

    Args:
        features: tensors by feature name.
        feature_columns: dense columns; wrap categorical ones in `indicator_column` or `embedding_column`.

    Returns:
        A float32 tensor of shape (examples, sum of the widths).

    Raises:
        ModelError: there are no columns, two have the same name, one is categorical, or a feature is missing.
    """
    state = _State(features)
    with _naming_columns():
        return tf.concat([state.dense(column) for column in ordered(feature_columns)], axis=1)


def linear_model(features: Mapping[str, Any], feature_columns: Iterable[Any], units: int, combiner: str) -> tf.Tensor:
    """Return the weighted sum of all columns plus a bias, of shape (examples, units); weights start at 0."""
    total = tf.convert_to_tensor(tf.Variable(lambda: tf.zeros([units]), name="bias_weights"))
    state = _State(features)
    for column in ordered(feature_columns):
        with _naming_columns():
            if hasattr(column, "get_sparse_tensors"):  # a categorical column
                weights = _weights(column.name, (column.num_buckets, units), "zeros")
                ids, scales = column.get_sparse_tensors(state.cache, state)
                flat = [tf.sparse.reshape(one, [tf.shape(one)[0], -1]) for one in (ids, scales) if one is not None]
                total += tf.nn.safe_embedding_lookup_sparse(weights, *flat, combiner=combiner)
            else:
                name = _layer_name(column.name)
                layer = keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros", name=name)
                total += layer(state.dense(column))
    return total


def ordered(feature_columns: Iterable[Any]) -> list[Any]:
    """Return columns sorted by name; they must have different names, and there must be one at least."""
    given: Any = [feature_columns] if hasattr(feature_columns, "parse_example_spec") else feature_columns
    for column in (given := list(given)):
        if not hasattr(column, "parse_example_spec"):
            raise ModelError(f"feature_columns: {type(column).__name__} is not a feature column")
    found = sorted(given, key=lambda column: column.name)
    for one, other in pairwise(found):
        if one.name == other.name:
            raise ModelError(f"feature_columns has two columns {one.name!r}")
    if not found:
        raise ModelError("feature_columns is empty")
    return found


class _State:
    """The values of features, and the `state_manager` that TensorFlow's columns ask for their variables and tables."""

    def __init__(self, features: Any) -> None:
        if not isinstance(features, Mapping):
            raise ModelError(f"feature columns need features by name, not {type(features).__name__}")
        ragged = {key: value.to_sparse() for key, value in features.items() if isinstance(value, tf.RaggedTensor)}
        self.cache = FeatureTransformationCache({**features, **ragged})
        self._variables: dict[Any, tf.Variable] = {}

    def dense(self, column: Any) -> tf.Tensor:
        """Return a dense column, of shape (examples, width)."""
        if not hasattr(column, "get_dense_tensor"):
            raise ModelError(
                f"the column {column.name!r} is categorical: a network of layers takes numbers, so give it an "
                "indicator_column or an embedding_column of it"
            )
        if getattr(column, "ckpt_to_load_from", None) is not None:
            raise ModelError(f"the column {column.name!r}: ckpt_to_load_from has no effect; use warm_start_from")
        column.create_state(self)
        value, width = column.get_dense_tensor(self.cache, self), column.variable_shape.num_elements()
        if value.shape[1:].num_elements() not in (width, None):
            shape = tuple(column.variable_shape)
            raise ModelError(f"the column {column.name!r}: an example has shape {value.shape[1:]}, not {shape}")
        return tf.reshape(value, [tf.shape(value)[0], width])

    def create_variable(
        self, column: Any, name: str, shape: Any, *, trainable: bool, initializer: Any, **_: Any
    ) -> None:
        self._variables[column] = _weights(column.name, shape, initializer, trainable=trainable)

    def get_variable(self, column: Any, name: str) -> tf.Variable:
        return self._variables[column]

    def has_resource(self, column: Any, name: str) -> bool:
        return False  # the trainer recognizes tables that `build` makes again

    def add_resource(self, column: Any, name: str, resource: Any) -> None:
        """Do nothing."""


def _weights(name: str, shape: tuple[int, int], initializer: Any, *, trainable: bool = True) -> tf.Variable:
    """Return the variable of an embedding layer with the name of a column."""
    layer = keras.layers.Embedding(
        *shape, embeddings_initializer=initializer, trainable=trainable, name=_layer_name(name)
    )
    if not layer.built:
        layer.build(None)
    return layer.embeddings.value


def _layer_name(name: str) -> str:
    """Return a column's layer name without the characters that Keras and TensorFlow refuse."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("_-") or "column"


@contextmanager
def _naming_columns() -> Iterator[None]:
    """Convert TensorFlow's errors for features that do not fit their columns."""
    try:
        yield
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise ModelError(f"feature_columns: {cause(error)}") from error
