"""Gradients over micro-batches, which are worked on one after the other for one update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from prototrain.data.batches import Batch, split_batch

GradientsOf = Callable[[Batch], tuple[dict[str, Any], list[Any]]]


def over_micro_batches(compute: GradientsOf, inputs: Batch, count: int) -> tuple[dict[str, Any], list[Any]]:
    """Average outputs and gradients over micro-batches that are worked on one after the other; traced.

    Args:
        compute: from a micro-batch to its scalars by name and its gradients (None where there is none).
        inputs: a tower's batch.
        count: how many micro-batches it is divided into.
    """
    if count == 1:
        return compute(inputs)
    outputs: dict[str, Any] = {}
    gradients: list[Any] = []
    for number, part in enumerate(split_batch(inputs, count)):
        # Each waits for the one before, so that only one's activations are in memory.
        waited = tf.nest.flatten([gradient for gradient in gradients if gradient is not None], expand_composites=True)
        with tf.control_dependencies(waited):
            part = tf.nest.map_structure(tf.identity, part, expand_composites=True)
        more_outputs, more_gradients = compute(part)
        more_outputs = {name: _float(value) for name, value in more_outputs.items()}
        outputs = {name: outputs[name] + value for name, value in more_outputs.items()} if number else more_outputs
        pairs = zip(gradients, more_gradients, strict=True)
        gradients = [_sum(*pair) for pair in pairs] if number else more_gradients
    means = {name: value / tf.cast(count, value.dtype) for name, value in outputs.items()}
    return means, [divide(gradient, tf.constant(float(count))) for gradient in gradients]


def divide(gradient: Any, divisor: tf.Tensor) -> Any:
    """Divide a gradient, be it dense, sparse or None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(divide(gradient.values, divisor), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(divisor, gradient.dtype)


def _float(value: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(value)
    return tensor if tensor.dtype.is_floating else tf.cast(tensor, tf.float64)


def _sum(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, tf.IndexedSlices) and isinstance(second, tf.IndexedSlices):
        values = tf.concat([first.values, second.values], 0)
        return tf.IndexedSlices(values, tf.concat([first.indices, second.indices], 0), first.dense_shape)
    return tf.convert_to_tensor(first) + tf.convert_to_tensor(second)
