"""A head of several labels gives what `tf.estimator` documents of its own; sums count the examples of all towers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import estimator
from prototrain.errors import ModelError
from prototrain.estimator import EstimatorSpec, ModeKeys, MultiHead, MultiLabelHead, OptimizerSpec, RegressionHead
from prototrain.towers import building

LOGITS = tf.constant([[-10.0, 10.0], [-15.0, 10.0]])
LABELS = tf.constant([[1, 0], [1, 1]], tf.int64)
CLASSES = ["low", "high"]


def measured(head: Any, labels: Any, features: Any = None) -> dict[str, float]:
    spec = head.create_estimator_spec(features or {}, ModeKeys.EVAL, LOGITS, labels)
    return {"loss": float(spec.loss)} | {name: float(metric.result()) for name, metric in spec.eval_metric_ops.items()}


def test_loss_and_metrics() -> None:
    found = measured(MultiLabelHead(2), LABELS)
    assert found == pytest.approx(
        {"loss": 8.75, "average_loss": 8.75, "auc": 0.1667, "auc_precision_recall": 0.6023}, abs=1e-3
    )
    found = measured(MultiLabelHead(2, thresholds=[0.5], label_vocabulary=CLASSES), LABELS)
    assert found["accuracy/positive_threshold_0.5"] == 0.25 and found["recall/positive_threshold_0.5"] == pytest.approx(
        1 / 3
    )
    weighted = measured(MultiLabelHead(2, "w", thresholds=[0.5]), LABELS, {"w": tf.constant([[1.0], [2.0]])})
    # The losses are 10 and 7.5.
    assert weighted["loss"] == pytest.approx(12.5, abs=1e-3) and weighted["average_loss"] == pytest.approx(
        25 / 3, abs=1e-3
    )
    assert weighted["accuracy/positive_threshold_0.5"] == pytest.approx(1 / 3)


def test_kinds_of_labels() -> None:
    sparse = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], ["low", "low", "high"], [2, 2])
    numbers = tf.RaggedTensor.from_row_lengths([0, 0, 1], [1, 2])
    head = MultiLabelHead(2, label_vocabulary=CLASSES)
    for given, by in ((sparse, head), (numbers, MultiLabelHead(2)), (LABELS, head)):
        assert float(by.loss(given, LOGITS)) == pytest.approx(8.75, abs=1e-3)
    found = head.predictions(LOGITS)
    assert found["classes"].numpy().tolist() == [[b"low", b"high"]] * 2
    np.testing.assert_allclose(found["probabilities"], tf.sigmoid(LOGITS))
    assert set(head.export_outputs(LOGITS)) == {"serving_default", "classification", "predict"}
    wrong: dict[str, Any] = {
        "n_classes must be at least 2": lambda: MultiLabelHead(1),
        "labels must be from 0 to 1": lambda: MultiLabelHead(2).loss([[0, 2], [1, 1]], LOGITS),
        r"must be of shape \(examples, 2\)": lambda: MultiLabelHead(2).loss([0, 1], LOGITS),
        "as a tf.SparseTensor or a": lambda: head.loss([["low", "low"], ["low", "high"]], LOGITS),
    }
    for message, call in wrong.items():
        with pytest.raises(ModelError, match=message):
            call()


def test_a_sum_is_that_of_all_towers() -> None:
    head = MultiLabelHead(2, loss_reduction="sum")
    both = MultiHead([MultiLabelHead(2, name="a", loss_reduction="sum"), RegressionHead(1, name="b")])
    logits, labels = {"a": LOGITS, "b": LOGITS[:, :1]}, {"a": LABELS, "b": [0.0, 0.0]}
    alone = [float(head.loss(LABELS, LOGITS, mode=mode)) for mode in (ModeKeys.TRAIN, ModeKeys.EVAL)]
    alone += [float(both.loss(labels, logits, mode=ModeKeys.TRAIN))]
    with building(2, True):
        weighed = [
            float(head.loss(LABELS, LOGITS, mode=mode, regularization_losses=[1.0])) for mode in ("train", "eval")
        ]
        weighed += [float(both.loss(labels, logits, mode=ModeKeys.TRAIN))]
    assert weighed[:2] == pytest.approx([2 * alone[0] + 1, alone[1] + 1])
    assert weighed[2] - alone[2] == pytest.approx(alone[0])


POINTS = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)


def two_optimizers(features: Any, labels: Any, mode: str) -> EstimatorSpec:
    hidden = keras.layers.Dense(3, "tanh", kernel_initializer="ones", name="hidden")(features)
    logits = keras.layers.Dense(1, kernel_initializer="ones", name="logits")(hidden)
    head = RegressionHead(loss_reduction="sum")
    optimizers = [
        OptimizerSpec(keras.optimizers.Adam(0.01), clip_norm=0.5, variables="hidden/"),
        OptimizerSpec(
            keras.optimizers.SGD(0.01, momentum=0.9),
            lambda step: 0.02 / (1.0 + tf.cast(step, tf.float32)),
            variables="logits/",
        ),
    ]
    return head.create_estimator_spec(features, mode, logits, labels, optimizers)


def test_two_optimizers_on_two_towers_are_one_on_both_batches(tmp_path: Path) -> None:
    def read(size: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((POINTS, POINTS.sum(1))).batch(size).repeat()

    config = estimator.RunConfig(
        train_distribute=tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), save_summary_steps=1
    )
    one = estimator.Estimator(two_optimizers, tmp_path / "one").train(lambda: read(20), steps=3)
    two = estimator.Estimator(two_optimizers, tmp_path / "two", config).train(lambda: read(10), steps=3)
    for name in ("hidden/kernel", "logits/kernel", "optimizer_2/learning_rate"):
        np.testing.assert_allclose(two.get_variable_value(name), one.get_variable_value(name), rtol=1e-5, err_msg=name)


def test_a_baseline_knows_the_labels_alone(tmp_path: Path) -> None:
    labels = np.array([[1, 0]] * 30 + [[1, 1]] * 10)
    data = tf.data.Dataset.from_tensor_slices(({"x": POINTS}, labels)).batch(40)
    made = estimator.BaselineEstimator(MultiLabelHead(2), tmp_path, keras.optimizers.Adam(0.5)).train(
        data.repeat, steps=30
    )
    assert made.get_variable_names()[0] == "baseline/bias"
    np.testing.assert_allclose(next(made.predict(lambda: data))["probabilities"], [1.0, 0.25], atol=0.03)
    for kind in (estimator.BaselineClassifier, estimator.BaselineRegressor):
        assert callable(kind(tmp_path / kind.__name__).train)
