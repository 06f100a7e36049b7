"""Mistakes in an Estimator program are one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain.errors import CheckpointError, ConfigError, DataError, ModelError, PrototrainError
from prototrain.estimator import (
    Estimator,
    EstimatorSpec,
    EvalSpec,
    FinalExporter,
    ModeKeys,
    RunConfig,
    ServingInputReceiver,
    TrainSpec,
    train_and_evaluate,
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
    "gives no loss in the mode TRAIN": lambda mode, loss: EstimatorSpec(mode, train_op=SGD()),
    "an OptimizerSpec, not nothing: train_op=keras": lambda mode, loss: EstimatorSpec(mode, loss=loss),
    "not GradientDescentOptimizer": lambda mode, loss: EstimatorSpec(
        mode, loss=loss, train_op=tf.compat.v1.train.GradientDescentOptimizer(0.1)
    ),
    r"must be a scalar, not of shape \(2,\); take": lambda mode, loss: EstimatorSpec(mode, loss=[loss, loss]),
    r"eval_metric_ops\['a'\] must be a Keras metric or a scalar tensor, not tuple": lambda mode, loss: EstimatorSpec(
        mode, loss=loss, train_op=SGD(), eval_metric_ops={"a": (loss, loss)}
    ),
    "collection of losses, which is gone; see": lambda mode, loss: tf.compat.v1.losses.get_total_loss(),
    "collection of global_step, which is gone; see": lambda mode, loss: tf.compat.v1.train.get_global_step(),
}


@pytest.mark.parametrize("message", OF_MODEL_FN)
def test_model_fn_errors(message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        Estimator(returning(OF_MODEL_FN[message]), tmp_path).train(plain, steps=1)


def test_missing_key_lists_the_features(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"KeyError in build.*a batch has: features, labels"):
        Estimator(returning(lambda mode, loss: {}[mode]), tmp_path).train(plain, steps=1)


@pytest.mark.parametrize(
    ("input_fn", "message"),
    [
        (lambda: next(iter(plain())), "must return a tf.data.Dataset, not tuple"),
        (lambda: plain().take(0), "dataset of input_fn is empty"),
        (lambda: plain().map(lambda x, y: (x, y, y)), r"must give \(features, labels\), not a tuple of 3"),
        (lambda batch_size: plain(batch_size), "input_fn takes 'batch_size', which is none of mode, params, config"),
    ],
)
def test_input_fn_errors(input_fn: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, ModelError), match=message):
        Estimator(linear_fn, tmp_path).train(input_fn, steps=1)


def train(**arguments: Any) -> Callable[[Path], Any]:
    return lambda path: Estimator(linear_fn, path).train(plain, **arguments)


OF_SETTINGS: dict[str, Callable[[Path], Any]] = {
    "save_checkpoints_steps or save_checkpoints_secs, not both": lambda path: RunConfig(
        save_checkpoints_steps=3, save_checkpoints_secs=3
    ),
    "model_fn takes 'x', which is none of features, labels": lambda path: Estimator(lambda x: None, path),
    "config must be a .*RunConfig, not dict": lambda path: Estimator(linear_fn, path, {}),  # type: ignore[arg-type]
    "there are two model directories": lambda path: Estimator(linear_fn, path, RunConfig(str(path / "other"))),
    "train_distribute must be a .*MirroredStrategy, not OneDeviceStrategy": lambda path: Estimator(
        linear_fn, path, RunConfig(train_distribute=tf.distribute.OneDeviceStrategy("CPU:0"))
    ).train(plain, steps=1),
    "steps must be a positive whole number, not 0": train(steps=0),
    "steps or max_steps, not both": train(steps=1, max_steps=1),
    "there is no checkpoint in .* yet; call train": lambda path: Estimator(linear_fn, path).evaluate(plain),
    "each of the exporters needs another name, not x, x": lambda path: EvalSpec(
        plain, exporters=[FinalExporter("x", print)] * 2
    ),
}


@pytest.mark.parametrize("message", OF_SETTINGS)
def test_settings_errors(message: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ModelError, CheckpointError), match=message):
        OF_SETTINGS[message](tmp_path)


def test_usage_errors(tmp_path: Path) -> None:
    several: dict[str, Any] = {"a": {}, "b": {}}

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = linear_fn(features, labels, mode)
        spec.predictions, spec.export_outputs = {"line": spec.predictions, "mean": tf.reduce_mean(features)}, several
        return spec

    trained = Estimator(model_fn, tmp_path).train(plain, steps=1)
    spec = tf.TensorSpec([None, 2])

    def more_to_evaluate(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        found = keras.layers.Dense(2, name="more")(features) if mode == ModeKeys.EVAL else features
        return linear_fn(found, labels, mode)

    cases: dict[str, Callable[[], Any]] = {
        "there is none of .'wrong'.; model_fn predicts line, mean": lambda: next(trained.predict(plain, "wrong")),
        "not one for each example .* use yield_single_examples=False": lambda: next(trained.predict(plain)),
        "has no end, so say how many": lambda: trained.evaluate(lambda: plain().repeat()),
        "export_outputs has a, b; call one of them 'serving_default'": lambda: trained.export_saved_model(
            tmp_path / "e", lambda: ServingInputReceiver(spec, {"x": spec})
        ),
        "line/kernel is .* there and .* here; train in another": lambda: trained.evaluate(
            lambda: plain().map(lambda x, y: (tf.concat([x, x], 1), y))
        ),
        "model_fn must make the same layers": lambda: train_and_evaluate(
            Estimator(more_to_evaluate, tmp_path / "more"), TrainSpec(plain), EvalSpec(plain)
        ),
        "gives no predictions in the mode PREDICT": lambda: next(
            Estimator(lambda features, mode: EstimatorSpec(mode), tmp_path).predict(plain)
        ),
    }
    for message, wrong in cases.items():
        with pytest.raises(PrototrainError, match=message):
            wrong()
