"""Selection of a model's variables by filters, and which of its values are scalars."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Config
from prototrain.errors import ModelError
from prototrain.model.net import scalars
from prototrain.model.variables import select
from tests.checkpoint.test_weights import NET, variables
from tests.tiny import tiny_build, tiny_trainer


@pytest.mark.parametrize(
    ("filters", "chosen"),
    [
        ({}, ["fc0/kernel", "fc0/bias", "logits/kernel"]),
        ({"filter_regex": "fc0"}, ["fc0/kernel", "fc0/bias"]),
        ({"filter_regex": ".*kernel"}, ["fc0/kernel", "logits/kernel"]),
        ({"filter_regex": "kernel|logits"}, ["logits/kernel"]),  # from the start of the name, as re.match
        ({"filter_fn": lambda variable: len(variable.shape) == 1}, ["fc0/bias"]),
        ({"filter_fn": lambda variable: len(variable.shape) == 2, "filter_regex": "fc0"}, ["fc0/kernel"]),
    ],
)
def test_select(filters: dict[str, Any], chosen: list[str]) -> None:
    config = Config({f"model.trainable_variables.{name}": value for name, value in filters.items()})
    assert list(select(variables(**NET), config, "model.trainable_variables")) == chosen


def test_only_trained_variables_decay() -> None:
    trainer = tiny_trainer(
        model__trainable_variables__filter_regex="fc0|logits",
        model__weight_decay__value=0.1,
        model__weight_decay__filter_regex=".*(kernel|gamma)",
    )
    assert list(trainer.trainable) == ["fc0/kernel", "fc0/bias", "logits/kernel", "logits/bias"]
    assert list(trainer.decayed) == ["fc0/kernel", "logits/kernel"]


# Scalars.


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
