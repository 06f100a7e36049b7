"""The counts of matrix products and convolutions against what they are by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain.actions.flops import Flops, count_flops

IMAGE = (2, 8, 8, 3)
TEXT = (2, 5, 4)


def counted(function: Callable[[Any], Any], shape: Any, *, dtype: Any = tf.float32) -> Flops:
    return count_flops(tf.function(function).get_concrete_function(tf.TensorSpec(shape, dtype)).graph)


def ones(*shape: int) -> tf.Tensor:
    return tf.ones(shape)


@pytest.mark.parametrize(
    ("function", "shape", "number"),
    [
        (lambda x: x @ ones(4, 7), (3, 4), 2 * 3 * 4 * 7),
        (lambda x: tf.matmul(x, ones(3, 7), transpose_a=True), (3, 4), 2 * 4 * 3 * 7),
        (lambda x: x @ ones(2, 4, 7), TEXT, 2 * (2 * 5 * 7) * 4),
        (lambda x: tf.matmul(x, ones(2, 5, 7), adjoint_a=True), TEXT, 2 * (2 * 4 * 7) * 5),
        (lambda x: tf.nn.conv2d(x, ones(3, 3, 3, 16), 1, "SAME"), IMAGE, 2 * (2 * 8 * 8 * 16) * 3 * 3 * 3),
        (lambda x: tf.nn.conv2d(x, ones(3, 3, 3, 16), 2, "VALID"), IMAGE, 2 * (2 * 3 * 3 * 16) * 3 * 3 * 3),
        (lambda x: tf.nn.conv1d(x, ones(3, 4, 6), 1, "SAME"), TEXT, 2 * (2 * 5 * 6) * 3 * 4),
        (
            lambda x: tf.nn.depthwise_conv2d(x, ones(3, 3, 3, 2), [1, 1, 1, 1], "SAME"),
            IMAGE,
            2 * (2 * 8 * 8 * 6) * 3 * 3,
        ),
        (
            lambda x: tf.nn.conv2d_transpose(x, ones(4, 4, 5, 3), [2, 16, 16, 5], 2),
            IMAGE,
            2 * (2 * 8 * 8 * 3) * 4 * 4 * 5,
        ),
        (
            lambda x: tf.nn.conv3d(x[..., None], ones(2, 2, 2, 1, 4), [1] * 5, "SAME"),
            IMAGE,
            2 * (2 * 8 * 8 * 3 * 4) * 8,
        ),
        (lambda x: tf.einsum("abc,cde->abde", x, ones(4, 2, 3)), TEXT, 2 * 2 * 5 * 4 * 2 * 3),
        (lambda x: tf.einsum("...c,cd->...d", x, ones(4, 7)), TEXT, 2 * 2 * 5 * 4 * 7),
        (lambda x: tf.einsum("abc->cab", x), TEXT, 0),
        (lambda x: tf.nn.relu(x) + 1.0, TEXT, 0),
        (lambda x: tf.function(lambda y: y @ ones(4, 7))(x), (3, 4), 2 * 3 * 4 * 7),
        (
            lambda x: tf.cond(x[0, 0] > 0, lambda: x @ ones(4, 7), lambda: x @ ones(4, 2) @ ones(2, 7)),
            (3, 4),
            2 * 3 * 4 * 7,
        ),
    ],
)
def test_a_count(function: Any, shape: Any, number: int) -> None:
    assert counted(function, shape) == Flops(number, [])


def test_attention() -> None:
    layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=3)
    projections = 4 * (2 * 5 * 4 * 6)  # queries, keys, values and the result: 5 places, 4 channels, 2 heads of 3
    scores_and_mixtures = 2 * (2 * 2 * 5 * 5 * 3)
    assert counted(lambda x: layer(x, x), TEXT) == Flops(2 * (projections + scores_and_mixtures), [])


def test_what_is_not_certain_is_said() -> None:
    assert counted(lambda x: x @ ones(4, 7), (None, 4)) == Flops(0, ["matmul (MatMul), whose shape is not fixed"])
    found = counted(keras.layers.LSTM(3), TEXT)
    assert found.number == 2 * 2 * (4 + 3) * 12
    assert len(found.uncounted) == 1 and found.uncounted[0].startswith("more than one round of the loop ")
    assert counted(tf.linalg.cholesky, (3, 3)) == Flops(0, ["Cholesky (Cholesky)"])
