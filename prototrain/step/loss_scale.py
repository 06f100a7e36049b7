"""How gradients are computed: over micro-batches, in which precision, scaled so that small ones do not vanish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from prototrain.data.batches import Batch, split_batch

GradientsOf = Callable[[Batch], tuple[dict[str, Any], list[Any]]]

_INITIAL = 2.0**15
_GROWTH_STEPS = 2000


class LossScale:
    """A factor on the loss while gradients are computed; it adapts to what float16 can hold (arXiv:1710.03740).

    It halves at an overflow, whose update is left out, and doubles after 2,000 updates without one.

    Attributes:
        scale: the factor, a float32 scalar variable, at least 1.
        good_steps: updates since it last changed.
    """

    def __init__(self) -> None:
        self.scale = tf.Variable(_INITIAL, trainable=False, name="loss_scale")
        self.good_steps = tf.Variable(0, trainable=False, name="good_steps")

    def variables(self) -> dict[str, tf.Variable]:
        """What a checkpoint holds of it, by name."""
        return {"loss_scale/scale": self.scale, "loss_scale/good_steps": self.good_steps}

    def unscaled(self, gradients: list[Any]) -> list[Any]:
        """Take the factor out again."""
        return [divide(gradient, self.scale) for gradient in gradients]

    def is_overflow(self, loss: tf.Tensor) -> tf.Tensor:
        """Whether gradients that are not finite may be so because of the factor alone; traced, before `adjust`."""
        return tf.math.is_finite(tf.cast(loss, tf.float32)) & (self.scale > 1.0)

    def adjust(self, finite: tf.Tensor) -> None:
        """Take note of an update, or of one that was left out; traced, once for all towers."""
        good = tf.where(finite, self.good_steps + 1, 0)
        grows = good >= _GROWTH_STEPS
        grown = tf.minimum(self.scale * 2.0, 2.0**60)
        smaller = tf.maximum(self.scale / 2.0, 1.0)
        self.scale.assign(tf.where(finite, tf.where(grows, grown, self.scale), smaller))
        self.good_steps.assign(tf.where(grows, 0, good))


@contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Let layers that are made meanwhile, in this thread, compute as a Keras policy says."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


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
