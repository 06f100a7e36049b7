from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain.errors import CheckpointError, ConfigError, DataError, ModelError
from prototrain.estimator import (
    DNNClassifier,
    Estimator,
    EstimatorSpec,
    EvalSpec,
    RunConfig,
    TrainSpec,
    feature_column,
    train_and_evaluate,
)
from tests.estimator.programs import linear_fn, named, plain


def train(model_fn: Any = linear_fn, input_fn: Any = plain, *, steps: int = 1) -> Callable[[Path], Any]:
    return lambda path: Estimator(model_fn, path).train(input_fn, steps=steps)


def train_on_one_device(path: Path) -> None:
    config = RunConfig(train_distribute=tf.distribute.OneDeviceStrategy("CPU:0"))
    Estimator(linear_fn, path, config).train(plain, steps=1)


def returning(make: Callable[[str, tf.Tensor], Any]) -> Callable[[Path], Any]:
    """Trains with a model_fn that returns the result of `make` for the mode and a loss."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        return make(mode, tf.reduce_mean(keras.layers.Dense(2)(features)))

    return train(model_fn)


def spec(mode: str, loss: tf.Tensor, **more: Any) -> EstimatorSpec:
    return EstimatorSpec(mode, **{"loss": loss, "train_op": keras.optimizers.SGD(), **more})


def evaluate_endlessly(path: Path) -> None:
    both = Estimator(linear_fn, path)
    try:
        train_and_evaluate(both, TrainSpec(plain, max_steps=1), EvalSpec(lambda: plain().repeat(), steps=None))
    finally:
        assert both.latest_checkpoint() is None  # fails before training


def train_classifier(path: Path) -> None:
    columns = [feature_column.numeric_column("a")]
    DNNClassifier([4], columns, path, 3).train(named, steps=1)  # tf.estimator has n_classes there


v1 = tf.compat.v1.train
CASES: list[tuple[type[Exception], str, Callable[[Path], Any]]] = [
    (ModelError, "must return an EstimatorSpec, not tuple", returning(lambda mode, loss: (loss, None))),
    (
        ModelError,
        "not GradientDescentOptimizer",
        returning(lambda mode, loss: spec(mode, loss, train_op=v1.GradientDescentOptimizer(0.1))),
    ),
    (
        ModelError,
        r"eval_metric_ops\['a'\] must be a Keras metric or a scalar tensor, not tuple",
        returning(lambda mode, loss: spec(mode, loss, eval_metric_ops={"a": (loss, loss)})),
    ),
    (
        ModelError,
        r"eval_metric_ops\['loss'\]",
        returning(lambda mode, loss: spec(mode, loss, eval_metric_ops={"loss": loss})),
    ),
    (ModelError, "collection of global_step, which is gone; see", returning(lambda *_: v1.get_global_step())),
    (DataError, "has no end, so say how many batches", evaluate_endlessly),
    (ModelError, "optimizer must be .* not 3 .n_classes ", train_classifier),
    (DataError, "must return a tf.data.Dataset, not tuple", train(input_fn=lambda: next(iter(plain())))),
    (ModelError, "input_fn takes 'size', which is none of mode, params, config", train(input_fn=lambda size: plain())),
    (ConfigError, "train_distribute must be a .*MirroredStrategy, not OneDeviceStrategy", train_on_one_device),
    (ConfigError, "steps must be a positive whole number, not 0", train(steps=0)),
    (CheckpointError, "no checkpoint in .* yet; call train", lambda path: Estimator(linear_fn, path).evaluate(plain)),
]


@pytest.mark.parametrize(("error", "message", "call"), CASES)
def test_errors(error: type[Exception], message: str, call: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        call(tmp_path)
