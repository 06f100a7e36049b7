"""Labels, weights and losses of a batch, as heads take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError


def as_rows(labels: Any, logits: tf.Tensor, width: int | None = None) -> tf.Tensor:
    """Labels of shape (examples, width), from those or from (examples,).

    Raises:
        ModelError: there are none, or they are of another shape.
    """
    if labels is None:
        raise ModelError("the head needs labels to train and to evaluate: input_fn must give (features, labels)")
    if isinstance(labels, Mapping):
        raise ModelError(f"the head takes one tensor of labels, not a dict of {', '.join(labels)}")
    found = tf.convert_to_tensor(labels)
    found = tf.cast(found, tf.int64) if found.dtype == tf.bool else found
    if found.shape.rank == logits.shape.rank - 1:
        found = found[..., tf.newaxis]
    if found.shape.rank != logits.shape.rank or (width is not None and found.shape[-1] != width):
        raise ModelError(
            f"the labels must be of shape (examples, {width or 1}), not {tuple(tf.convert_to_tensor(labels).shape)}"
        )
    return found


def numbered(labels: tf.Tensor, vocabulary: Sequence[str] | None) -> tf.Tensor:
    """Labels as numbers; -1 where one is not in the vocabulary.

    Raises:
        ModelError: they are texts without a vocabulary, or there is one for no texts.
    """
    is_text = labels.dtype == tf.string
    if is_text == (vocabulary is not None):
        if vocabulary is None:
            return labels
        layer = keras.layers.StringLookup(vocabulary=list(vocabulary), oov_token="[not in the vocabulary]")
        return tf.cast(layer(labels), tf.int64) - 1
    what = "are texts, so it needs a label_vocabulary" if is_text else f"are {labels.dtype.name}, no texts"
    raise ModelError(f"the labels of the head {what}" + ("" if is_text else ", so leave out label_vocabulary"))


def checked_range(labels: tf.Tensor, n_classes: int) -> tf.Tensor:
    """Labels that are known to be classes.

    Raises:
        ModelError: some are not; in a traced step, it fails when it runs.
    """
    fits = tf.reduce_all((labels >= 0) & (labels <= n_classes - 1))
    what = f"labels must be from 0 to {n_classes - 1}, or in the label_vocabulary"
    if tf.executing_eagerly():
        if not bool(fits):
            raise ModelError(f"{what}; the first batch has {sorted({float(x) for x in tf.reshape(labels, [-1])})[:5]}")
        return labels
    with tf.control_dependencies([tf.debugging.Assert(fits, [what, labels])]):
        return tf.identity(labels)


def multi_hot(labels: Any, n_classes: int, vocabulary: Sequence[str] | None) -> Any:
    """Labels as a number for each class, 1 where an example is of it; those that are so already stay as they are.

    Args:
        labels: sparse or ragged, with the classes of each example as numbers or as texts.
        n_classes: how many classes there are.
        vocabulary: the texts.

    Raises:
        ModelError: they are of another kind; or out of range, which in a traced step fails when it runs.
    """
    if not isinstance(labels, tf.SparseTensor | tf.RaggedTensor):
        return labels
    sparse = labels if isinstance(labels, tf.SparseTensor) else labels.to_sparse()
    ids = numbered(sparse.values, vocabulary)
    if not ids.dtype.is_integer:
        raise ModelError(f"the labels of the head must be whole numbers or texts, not {ids.dtype.name}")
    ids = checked_range(tf.cast(ids, tf.int64), n_classes)
    return tf.cast(tf.sparse.to_indicator(sparse.with_values(ids), n_classes), tf.int64)


def weights_of(features: Any, column: Any, losses: tf.Tensor) -> tf.Tensor | None:
    """The weights of the examples, of shape (examples, 1) or that of the losses; None if there are none.

    Raises:
        ModelError: there is no such feature, or it does not fit.
    """
    if column is None:
        return None
    key = column if isinstance(column, str) else column.key
    if not isinstance(features, Mapping) or key not in features:
        raise ModelError(f"there is no feature {key!r}, which is the weight_column of the head")
    found = tf.cast(features[key], tf.float32)
    normalize = getattr(column, "normalizer_fn", None)
    found = found if normalize is None else normalize(found)
    found = found[..., tf.newaxis] if found.shape.rank == losses.shape.rank - 1 else found
    if found.shape.rank != losses.shape.rank or found.shape[-1] not in (1, losses.shape[-1]):
        raise ModelError(f"the weights {key!r} are of shape {tuple(found.shape)}, the losses of {tuple(losses.shape)}")
    return found


def all_classes(n_classes: int, vocabulary: Sequence[str] | None) -> tf.Tensor:
    """Return the names of all classes."""
    return tf.constant(vocabulary if vocabulary is not None else [str(index) for index in range(n_classes)])


def columns_of(row: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """A row for each example."""
    return tf.tile(row[tf.newaxis], [tf.shape(like)[0], 1])
