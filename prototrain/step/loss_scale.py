"""A factor on the loss, so that small gradients do not vanish in 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from prototrain.step.micro_batches import divide

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

    def gradient_of(self, tape: tf.GradientTape) -> Callable[[tf.Tensor, list[Any]], list[Any]]:
        """`tape.gradient` of the loss times the factor, which is taken out of the gradients again."""

        def gradient(loss: tf.Tensor, variables: list[Any]) -> list[Any]:
            scaled = tape.gradient(loss, variables, output_gradients=tf.cast(self.scale, loss.dtype))
            return [divide(found, self.scale) for found in scaled]

        return gradient

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
