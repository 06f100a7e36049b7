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
from prototrain.errors import CallbackError, DataError, ModelError, StepError
from tests.tiny import tiny_arrays, tiny_build, tiny_datasets, tiny_trainer


def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = tiny_build(inputs, train_phase)
    net["probability"] = tf.nn.softmax(net["logits"])[:, 1]
    net["predicted"] = net["probability"] > 0.5
    net["wrong"] = net["predicted"] != (inputs["y"] == 1)
    return net


class Largest(Inferencer):
    """Sums only: the number of batches and of examples."""

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
        Largest(),
    ]


def expected(trainer: Any, count: int) -> dict[str, float]:
    """The same, by NumPy, on the first `count` examples at once."""
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
        "examples": count,
    }


@pytest.mark.parametrize(("batches", "count"), [(0, 20), (2, 16)])
def test_each_example_counts_once(batches: int, count: int) -> None:
    trainer = tiny_trainer(build=build)
    runner = InferenceRunner("vld", inferencers(), batches=batches)
    trainer.train([runner.every(steps=5), Validation(batches=batches, prefix="plain").every(steps=5)], max_steps=10)
    measured = {name: trainer.monitors.latest(f"vld/{name}", at_step=10) for name in expected(trainer, count)}
    assert measured == pytest.approx(expected(trainer, count), rel=1e-5)
    assert measured["loss"] == pytest.approx(trainer.monitors.latest("plain/loss"), rel=1e-5)


def test_several_datasets_and_a_decision_by_them(experiment: Path) -> None:
    trainer = tiny_trainer(experiment, build=build)
    data = tf.data.Dataset.from_tensor_slices(tiny_arrays(12)).batch(5)
    callbacks: list[Callback] = [
        InferenceRunner("vld", ScalarStats("loss"), prefix="a").every(steps=3),
        InferenceRunner(data, Largest(), prefix="b").every(steps=3),
        MinSaver("a/loss").every(steps=3),
    ]
    trainer.train(callbacks, max_steps=6)
    assert trainer.monitors.history("b/examples") == [(3, 12.0), (6, 12.0)]
    assert [step for step, _ in trainer.monitors.history("a/loss")] == [3, 6]


def test_counts_of_nothing() -> None:
    stats = BinaryClassificationStats("p", "y").result([0, 0, 0, 4])
    assert (stats["precision"], stats["recall"], stats["f1"], stats["accuracy"]) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("runner", "error", "message"),
    [
        (lambda: InferenceRunner("no", []), DataError, "gives no 'no'"),
        (lambda: InferenceRunner("vld", ScalarStats("lost")), ModelError, "no tensor 'lost'; it has: x, y"),
        (lambda: InferenceRunner("vld", ClassificationError("accuracy")), ModelError, "one entry for each example"),
        (lambda: InferenceRunner("vld", [keras.metrics.AUC()]), CallbackError, "wrap Keras metrics in KerasMetric"),
        (lambda: KerasMetric(keras.metrics.AUC()), CallbackError, "name the tensors"),
    ],
)
def test_mistakes(runner: Any, error: type[Exception], message: str, trainer: Any) -> None:
    with pytest.raises(error, match=message):
        trainer.train([runner()], max_steps=1)


@pytest.fixture(scope="module")
def trainer() -> Any:
    return tiny_trainer()


def test_an_empty_dataset(trainer: Any) -> None:
    empty = tf.data.Dataset.from_tensor_slices(tiny_arrays(8)).batch(4).take(0)
    with pytest.raises(DataError, match="is empty"):
        trainer.train([InferenceRunner(empty, ScalarStats("loss"))], max_steps=1)


def test_it_does_not_train() -> None:
    trainers = [tiny_trainer(build=build) for _ in range(2)]
    trainers[0].train([], max_steps=6)
    trainers[1].train([InferenceRunner("vld", inferencers()).every(steps=1)], max_steps=6)
    for name, variable in trainers[0].variables.items():
        assert np.array_equal(variable, trainers[1].variables[name]), name


def test_data_that_fails() -> None:
    data = tf.data.Dataset.from_tensor_slices(tiny_arrays(8)).batch(4)
    broken = data.map(lambda batch: {**batch, "x": tf.debugging.check_numerics(batch["x"] / 0.0, "bad x")})
    with pytest.raises(StepError, match=r"InferenceRunner on 'inference' failed at step 0: .*bad x"):
        tiny_trainer().train([InferenceRunner(broken, ScalarStats("loss"))], max_steps=1)


def test_a_dataset_without_an_end_is_refused_before_the_first_step(trainer: Any) -> None:
    endless, before = tiny_datasets()["vld"].repeat(), trainer.global_step
    with pytest.raises(DataError, match="'inference' has no end, so the whole of it cannot be evaluated; leave out"):
        trainer.train([InferenceRunner(endless, ScalarStats("loss"))], max_steps=before + 1)
    assert trainer.global_step == before


def test_a_mistake_shows_before_the_first_step_and_a_metric_starts_at_nothing() -> None:
    trainer = tiny_trainer()
    with pytest.raises(ModelError, match="the model has no tensor 'logit'"):
        trainer.train([InferenceRunner("vld", ScalarStats("logit")).every(steps=5)], max_steps=9)
    assert trainer.global_step == 0

    updates: list[float] = []
    metric = keras.metrics.Sum()

    class Look(Callback):
        def before_epoch(self) -> None:
            updates.append(float(metric.result()))

    trainer.train([InferenceRunner("vld", KerasMetric(metric, "y")).every(steps=5), Look()], max_steps=5)
    assert updates == [0.0]
    assert trainer.monitors.names() == ["vld/sum"]
