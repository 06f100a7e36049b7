"""What a model does with several columns: puts them side by side, or adds them up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.columns.adoption import adopted
from prototrain.estimator.columns.base import Categorical, Dense, combined, layer_name
from prototrain.estimator.columns.dense import Embedded, Indicator, SharedEmbedded
from prototrain.estimator.columns.sequences import SequenceCategorical, SequenceNumeric


def input_layer(features: Mapping[str, Any], feature_columns: Iterable[Any]) -> tf.Tensor:
    """The numbers of all columns side by side, in the order of their names; what a network of layers begins with.

    Raises:
        ModelError: there are no columns, or one is no numbers.
    """
    return tf.concat([_numbers(column, features) for column in ordered(feature_columns)], axis=1)


def sequence_input_layer(features: Mapping[str, Any], feature_columns: Iterable[Any]) -> tuple[tf.Tensor, tf.Tensor]:
    """The numbers of all columns of sequences side by side, in the order of their names, for a recurrent layer.

    Returns:
        the numbers, of shape (examples, steps, width), and how many steps each example has, int64. They have to be the
        same in all columns. ``mask=tf.sequence_mask(lengths)`` tells a recurrent layer.

    Raises:
        ModelError: there are no columns, or one is of no sequences.
    """
    found = [_sequence(column, features) for column in ordered(feature_columns)]
    lengths = found[0][1]
    checks = [
        tf.debugging.assert_equal(lengths, other, "the columns of sequences have examples of different lengths")
        for _, other in found[1:]
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.concat([numbers for numbers, _ in found], axis=-1), tf.identity(lengths)


def _sequence(column: Any, features: Mapping[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
    if isinstance(column, SequenceNumeric | Indicator | Embedded | SharedEmbedded):
        return column.sequence(features)
    raise ModelError(
        f"sequence_input_layer cannot take the column {column.name!r}; give it a sequence_numeric_column, or an "
        "indicator_column or embedding_column of a sequence_categorical_column"
    )


def _numbers(column: Any, features: Mapping[str, Any]) -> tf.Tensor:
    if isinstance(column, Dense):
        return column.dense(features)
    if isinstance(column, Categorical | SequenceCategorical):
        raise ModelError(
            f"the column {column.name!r} is categorical: a network of layers takes numbers, so give it an "
            "indicator_column or an embedding_column of it"
        )
    raise ModelError(f"the column {column.name!r} is of sequences: give it to feature_column.sequence_input_layer")


def linear_model(features: Mapping[str, Any], feature_columns: Iterable[Any], units: int, combiner: str) -> tf.Tensor:
    """A weighted sum of all columns, and a bias; all weights are 0 at first."""
    total = tf.convert_to_tensor(tf.Variable(lambda: tf.zeros([units]), name="bias_weights"))
    for column in ordered(feature_columns):
        if isinstance(column, Categorical):
            layer = keras.layers.Embedding(column.size, units, embeddings_initializer="zeros", name=layer_name(column))
            total += combined(layer, column.ids(features), combiner, weights=column.weights(features))
        else:
            layer = keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros", name=layer_name(column))
            total += layer(_numbers(column, features))
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
