"""What counts as a scalar of a model."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from prototrain.model.net import scalars


def test_scalars() -> None:
    found = scalars(
        {
            "loss": tf.constant(1.0),
            "variable": keras.Variable(2.0),
            "count": tf.Variable(3),
            "vector": keras.Variable([1.0]),
            "text": tf.constant("x"),
            "ragged": tf.ragged.constant([[1.0]]),
            "array": np.array(1.0),
        }
    )
    assert {name: float(value) for name, value in found.items()} == {"loss": 1.0, "variable": 2.0, "count": 3.0}
