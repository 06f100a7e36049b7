from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain.errors import CheckpointError, ConfigError, DataError, ModelError
from prototrain.estimator import (
    Estimator,
    EstimatorSpec,
    RunConfig,
)
from tests.estimator.programs import linear_fn, plain

SGD = keras.optimizers.SGD


def returning(make: Callable[[str, tf.Tensor], Any]) -> Callable[..., Any]:
    """A model_fn that returns the result of `make` for the mode and a loss."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        outputs = keras.layers.Dense(2)(features)
        return make(mode, tf.reduce_mean(outputs))

    return model_fn


OF_MODEL_FN = {
    "must return an EstimatorSpec, not tuple": lambda mode, loss: (loss, None),
    "not GradientDescentOptimizer": lambda mode, loss: EstimatorSpec(
        mode, loss=loss, train_op=tf.compat.v1.train.GradientDescentOptimizer(0.1)
    ),
    r"eval_metric_ops\['a'\] must be a Keras metric or a scalar tensor, not tuple": lambda mode, loss: EstimatorSpec(
        mode, loss=loss, train_op=SGD(), eval_metric_ops={"a": (loss, loss)}
    ),
    "collection of global_step, which is gone; see": lambda mode, loss: tf.compat.v1.train.get_global_step(),
}


@pytest.mark.parametrize("message", OF_MODEL_FN)
def test_model_fn_errors(message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        Estimator(returning(OF_MODEL_FN[message]), tmp_path).train(plain, steps=1)


@pytest.mark.parametrize(
    ("input_fn", "message"),
    [
        (lambda: next(iter(plain())), "must return a tf.data.Dataset, not tuple"),
        (lambda batch_size: plain(batch_size), "input_fn takes 'batch_size', which is none of mode, params, config"),
    ],
)
def test_input_fn_errors(input_fn: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, ModelError), match=message):
        Estimator(linear_fn, tmp_path).train(input_fn, steps=1)


def train(**arguments: Any) -> Callable[[Path], Any]:
    return lambda path: Estimator(linear_fn, path).train(plain, **arguments)


OF_SETTINGS: dict[str, Callable[[Path], Any]] = {
    "train_distribute must be a .*MirroredStrategy, not OneDeviceStrategy": lambda path: Estimator(
        linear_fn, path, RunConfig(train_distribute=tf.distribute.OneDeviceStrategy("CPU:0"))
    ).train(plain, steps=1),
    "steps must be a positive whole number, not 0": train(steps=0),
    "there is no checkpoint in .* yet; call train": lambda path: Estimator(linear_fn, path).evaluate(plain),
}


@pytest.mark.parametrize("message", OF_SETTINGS)
def test_settings_errors(message: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ModelError, CheckpointError), match=message):
        OF_SETTINGS[message](tmp_path)
