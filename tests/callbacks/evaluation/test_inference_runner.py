from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback, ModelDict
from prototrain.callbacks import (
    BinaryClassificationStats,
    ClassificationError,
    Inferencer,
    InferenceRunner,
    KerasMetric,
    MinSaver,
    ScalarStats,
    Validation,
)
from prototrain.errors import DataError, StepError
from tests.tiny import tiny_arrays, tiny_build, tiny_trainer, values


def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = tiny_build(inputs, train_phase)
    net["probability"] = tf.nn.softmax(net["logits"])[:, 1]
    net["predicted"] = net["probability"] > 0.5
    net["wrong"] = net["predicted"] != (inputs["y"] == 1)
    return net


class Largest(Inferencer):
    """Returns the number of batches and of examples."""

    def sums(self, net: Any, size: tf.Tensor) -> list[Any]:
        return [1, size]

    def result(self, sums: Any) -> dict[str, float]:
        return {"batches": sums[0], "examples": sums[1]}


def inferencers() -> list[Inferencer]:
    return [
        ScalarStats(["loss", "accuracy", "probability"]),
        ClassificationError(),
        BinaryClassificationStats("predicted", "y", prefix="binary_"),
        KerasMetric(keras.metrics.AUC(name="auc"), "y", "probability"),
        KerasMetric(keras.metrics.BinaryAccuracy(), "y", "probability", name="keras_accuracy"),
        KerasMetric(keras.metrics.MeanSquaredError(name="mse"), "y", "probability"),
        Largest(),
    ]


def expected(trainer: Any, count: int) -> dict[str, float]:
    """Compute the same with NumPy on the first `count` examples."""
    arrays = {name: array[:count] for name, array in tiny_arrays(20).items()}
    predict = trainer.get_predictor(["x", "y"], ["loss", "probability"])
    loss, probability = predict(arrays["x"], arrays["y"])
    label, guess = arrays["y"] == 1, probability > 0.5
    auc = keras.metrics.AUC()
    auc.update_state(arrays["y"], probability)
    hits = int((label & guess).sum())
    accuracy = (label == guess).mean()
    return {
        "loss": float(loss),
        "accuracy": accuracy,
        "probability": probability.mean(),
        "error": 1 - accuracy,
        "binary_precision": hits / guess.sum(),
        "binary_recall": hits / label.sum(),
        "binary_accuracy": accuracy,
        "auc": float(auc.result()),
        "keras_accuracy": accuracy,
        "mse": np.mean((arrays["y"] - probability) ** 2),
        "examples": count,
    }


def test_every_example_counts_once_and_training_is_unchanged(experiment: Path) -> None:
    trainer, without = tiny_trainer(experiment, build=build), tiny_trainer(build=build)
    data = tf.data.Dataset.from_tensor_slices(tiny_arrays(12)).batch(5)
    callbacks: list[Callback] = [
        InferenceRunner("vld", inferencers()),
        InferenceRunner("vld", inferencers(), batches=2, prefix="part"),
        InferenceRunner(data, Largest(), prefix="own"),
        Validation(batches=2, prefix="plain"),
        MinSaver("part/loss"),
    ]
    trainer.train([callback.every(steps=3) for callback in callbacks], max_steps=6)
    for prefix, count in (("vld", 20), ("part", 16)):
        measured = {name: trainer.monitors.latest(f"{prefix}/{name}", at_step=6) for name in expected(trainer, count)}
        assert measured == pytest.approx(expected(trainer, count), rel=1e-5)
    assert measured["loss"] == pytest.approx(trainer.monitors.latest("plain/loss"), rel=1e-5)
    assert trainer.monitors.history("own/examples") == [(3, 12.0), (6, 12.0)]
    without.train([], max_steps=6)
    assert values(without) == {name: bits for name, bits in values(trainer).items() if name in without.state}


def test_failing_and_endless_data() -> None:
    trainer, data = tiny_trainer(), tf.data.Dataset.from_tensor_slices(tiny_arrays(8)).batch(4)
    broken = data.map(lambda batch: {**batch, "x": tf.debugging.check_numerics(batch["x"] / 0.0, "bad x")})
    with pytest.raises(StepError, match=r"InferenceRunner on 'inference' failed at step \d: .*bad x"):
        trainer.train([InferenceRunner(broken, ScalarStats("loss"))], max_steps=1)
    with pytest.raises(DataError, match="'inference' is infinite; remove its repeat"):
        trainer.train([InferenceRunner(data.repeat(), ScalarStats("loss"))], max_steps=1)
    assert trainer.global_step == 0


def test_metrics_with_several_values() -> None:
    def of_classes(inputs: dict[str, tf.Tensor], train_phase: bool) -> ModelDict:
        net = tiny_build(inputs, train_phase)
        net.classes = tf.one_hot(inputs["y"], 2)
        net.probabilities = tf.nn.softmax(net.logits)
        return net

    trainer = tiny_trainer(build=of_classes)
    trainer.train(
        [InferenceRunner("vld", KerasMetric(keras.metrics.F1Score(), "classes", "probabilities"))], max_steps=1
    )
    names = [name for name in trainer.monitors.names() if name.startswith("vld/")]
    assert names == ["vld/f1_score/0", "vld/f1_score/1"]


def test_rehearsal_leaves_no_counts() -> None:
    metric = keras.metrics.Sum()
    late = InferenceRunner("vld", KerasMetric(metric, "y"))
    late.at_end = False
    tiny_trainer().train([late.every(steps=50)], max_steps=1)
    assert float(metric.result()) == 0.0
