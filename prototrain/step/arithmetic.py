"""Arithmetic with scalars and gradients of parts of a batch: gradients may be dense, sparse or None."""

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
    """Multiply a scalar or a gradient by a factor.

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


def divide(value: Any, divisor: tf.Tensor) -> Any:
    """Divide a scalar or a gradient."""
    if value is None:
        return None
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(divide(value.values, divisor), value.indices, value.dense_shape)
    return value / tf.cast(divisor, value.dtype)


def add(first: Any, second: Any) -> Any:
    """Add two scalars or gradients; rows of sparse ones stand one after the other."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, tf.IndexedSlices) and isinstance(second, tf.IndexedSlices):
        values = tf.concat([first.values, second.values], 0)
        return tf.IndexedSlices(values, tf.concat([first.indices, second.indices], 0), first.dense_shape)
    return tf.convert_to_tensor(first) + tf.convert_to_tensor(second)


def as_float(value: Any) -> tf.Tensor:
    """A tensor that a mean can be taken of: integers become float64."""
    tensor = tf.convert_to_tensor(value)
    return tensor if tensor.dtype.is_floating else tf.cast(tensor, tf.float64)
