"""Which values of a model are scalars."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.model.net import scalars
from tests.tiny import tiny_build, tiny_trainer


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


@pytest.mark.parametrize("name", ["learning_rate", "loss_total"])
def test_reserved_scalar_names(name: str) -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        return {**tiny_build(inputs, train_phase), name: tf.constant(5.0)}

    with pytest.raises(ModelError, match=f"scalar '{name}'"):
        tiny_trainer(build=build)


def test_reserved_names_of_other_tensors() -> None:
    trainer = tiny_trainer(build=lambda *given: {**tiny_build(*given), "learning_rate": tf.ones([2])})
    trainer.train(max_steps=1)
    assert trainer.outputs["learning_rate"] == pytest.approx(0.01)
