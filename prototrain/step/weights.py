"""Weights of the parts of a batch: what the loss of each micro-batch or tower is a mean over."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def share_of_tower(weight: tf.Tensor, placement: Any) -> tf.Tensor:
    """The weight of this tower, divided by the mean weight of all towers; traced.

    A plain mean over the towers of values that were multiplied by it is their weighted mean. It is 0 if all weights
    are 0.

    Args:
        weight: of this tower, float64.
        placement: the towers.
    """
    (mean,) = placement.mean([weight])
    return tf.math.divide_no_nan(weight, mean)


def weighted(value: Any, factor: tf.Tensor) -> Any:
    """Multiply a scalar or a gradient (dense, sparse or None) by a factor.

    A part without weight may have divided by it, so that 0 times NaN is 0 here.
    """
    if value is None:
        return None
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(weighted(value.values, factor), value.indices, value.dense_shape)
    tensor = as_float(value)
    if tensor.shape.rank == 0:  # costs nothing, and keeps the digits of sums
        return tf.cast(tf.math.multiply_no_nan(tf.cast(tensor, tf.float64), factor), tensor.dtype)
    return tf.math.multiply_no_nan(tensor, tf.cast(factor, tensor.dtype))


def as_float(value: Any) -> tf.Tensor:
    """A tensor that a mean can be taken of: integers become float64."""
    tensor = tf.convert_to_tensor(value)
    return tensor if tensor.dtype.is_floating else tf.cast(tensor, tf.float64)
