"""Losses, metrics and predictions of heads equal the documented ones of `tf.estimator`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import estimator
from prototrain.errors import ModelError
from prototrain.estimator import BinaryClassHead, ModeKeys, MultiClassHead, MultiLabelHead, RegressionHead
from prototrain.estimator.export import signatures
from prototrain.towers import building

LOGITS = tf.constant([[45.0], [-41.0]])
THREE = tf.constant([[10.0, 0, 0], [0, 10, 0]])


def measured(head: Any, features: Any, logits: Any, labels: Any, *losses: Any) -> dict[str, float]:
    spec = head.create_estimator_spec(features, ModeKeys.EVAL, logits, labels, regularization_losses=losses or None)
    return {"loss": float(spec.loss)} | {name: float(metric.result()) for name, metric in spec.eval_metric_ops.items()}


def test_binary_class_head() -> None:
    found = measured(BinaryClassHead(), {}, LOGITS, [1, 1])
    assert found == pytest.approx(
        {"loss": 20.5, "average_loss": 20.5, "accuracy": 0.5, "accuracy_baseline": 1, "auc": 0}
        | {"auc_precision_recall": 1, "label/mean": 1, "precision": 1, "prediction/mean": 0.5, "recall": 0.5},
        abs=1e-3,
    )
    named = BinaryClassHead(label_vocabulary=["no", "yes"])
    found = named.predictions(LOGITS)
    assert " ".join(found) == "logits logistic probabilities class_ids classes all_class_ids all_classes"
    assert found["classes"].numpy().tolist() == [[b"yes"], [b"no"]] and found["class_ids"].shape == (2, 1)
    assert found["all_classes"].numpy().tolist() == [[b"no", b"yes"]] * 2
    for head, labels in ((named, ["yes"] * 2), (BinaryClassHead(), [True] * 2)):
        assert float(head.loss(tf.constant(labels), LOGITS)) == 20.5


def test_weights_and_reductions() -> None:
    features = {"w": tf.constant([[1.0], [3.0]])}
    for reduction, loss in {"sum_over_batch_size": 61.5, "sum": 123.0}.items():
        head = BinaryClassHead(weight_column="w", loss_reduction=reduction)
        assert float(head.loss([1, 1], LOGITS, features)) == pytest.approx(loss)
    head = BinaryClassHead(weight_column=estimator.feature_column.numeric_column("w"))
    found = measured(head, features, LOGITS, [1, 0], tf.constant(1.0), tf.constant(2.0))
    assert found["average_loss"] == pytest.approx(0) and found["accuracy"] == 1.0
    assert found["label/mean"] == 0.25 and found["accuracy_baseline"] == 0.75  # by weight
    assert found["loss"] == pytest.approx(3.0)


def test_long_sums_are_exact() -> None:
    """In float32, 2**24 + 1 is 2**24."""
    metric = RegressionHead().metrics({}, tf.constant([[2.0**12]]), [0.0])["average_loss"]
    for value in [1.0] * 7:
        metric.update_state(value)
    assert float(metric.result()) == 2**21 + 7 / 8


def test_multi_class_head() -> None:
    found = measured(MultiClassHead(3), {}, THREE, tf.constant([1, 1]))
    assert found == pytest.approx({"loss": 5.0, "average_loss": 5.0, "accuracy": 0.5}, abs=1e-3)
    spec = MultiClassHead(3, label_vocabulary=["a", "b", "c"]).create_estimator_spec({}, ModeKeys.PREDICT, THREE)
    outputs = signatures(spec.export_outputs, None)
    assert {name: sorted(tensors) for name, tensors in outputs.items()} == {
        "serving_default": ["classes", "scores"],
        "classification": ["classes", "scores"],
        "predict": ["all_class_ids", "all_classes", "class_ids", "classes", "logits", "probabilities"],
    }
    assert outputs["predict"]["classes"].numpy().tolist() == [[b"a"], [b"b"]]


def test_regression_head() -> None:
    logits = tf.constant([[1.0, 2.0], [3.0, 5.0]])
    found = measured(RegressionHead(2), {}, logits, [[0, 2], [3, 3]])
    assert found == pytest.approx({"loss": 1.25, "average_loss": 1.25, "prediction/mean": 2.75, "label/mean": 2})
    features = {"w": tf.constant([0.0, 1.0])}
    assert measured(RegressionHead(2, "w"), features, logits, [[0, 2], [3, 3]])["average_loss"] == 2.0
    assert float(RegressionHead(loss_fn=tf.nn.sigmoid_cross_entropy_with_logits).loss([1, 1], LOGITS)) == 20.5


HEAD = BinaryClassHead()
CASES: dict[str, Callable[[], Any]] = {
    r"labels must be of shape \(examples, 1\), not \(2, 2\)": lambda: HEAD.loss([[1, 2], [1, 2]], LOGITS),
    "labels must be from 0 to 1, or in the label_vocabulary; the first batch has": lambda: HEAD.loss([0, 2], LOGITS),
    "no feature 'w', which is the weight_column": lambda: BinaryClassHead("w").loss([1, 1], LOGITS, {}),
    "give it an optimizer=": lambda: HEAD.create_estimator_spec({}, ModeKeys.TRAIN, LOGITS, [1, 1]),
}


@pytest.mark.parametrize("message", CASES)
def test_messages(message: str) -> None:
    with pytest.raises(ModelError, match=message):
        CASES[message]()


def test_wrong_label_in_a_traced_step() -> None:
    loss = tf.function(lambda labels: HEAD.loss(labels, LOGITS))
    np.testing.assert_allclose(loss(tf.constant([1, 1])), 20.5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be from 0 to 1"):
        loss(tf.constant([1, 5]))


BOTH = tf.constant([[-10.0, 10.0], [-15.0, 10.0]])
LABELS = tf.constant([[1, 0], [1, 1]], tf.int64)
CLASSES = ["low", "high"]


def test_multi_label_head() -> None:
    found = measured(MultiLabelHead(2), {}, BOTH, LABELS)
    assert found == pytest.approx(
        {"loss": 8.75, "average_loss": 8.75, "auc": 0.1667, "auc_precision_recall": 0.6023}, abs=1e-3
    )
    weighted = measured(MultiLabelHead(2, "w"), {"w": tf.constant([[1.0], [2.0]])}, BOTH, LABELS)
    # The losses are 10 and 7.5.
    expected = {"loss": 12.5, "average_loss": 25 / 3}
    assert {name: weighted[name] for name in expected} == pytest.approx(expected, abs=1e-3)


def test_formats_of_multi_labels() -> None:
    sparse = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], ["low", "low", "high"], [2, 2])
    numbers = tf.RaggedTensor.from_row_lengths([0, 0, 1], [1, 2])
    head = MultiLabelHead(2, label_vocabulary=CLASSES)
    for given, by in ((sparse, head), (numbers, MultiLabelHead(2)), (LABELS, head)):
        assert float(by.loss(given, BOTH)) == pytest.approx(8.75, abs=1e-3)
    found = head.predictions(BOTH)
    assert found["classes"].numpy().tolist() == [[b"low", b"high"]] * 2
    np.testing.assert_allclose(found["probabilities"], tf.sigmoid(BOTH))
    assert set(head.export_outputs(BOTH)) == {"serving_default", "classification", "predict"}


def test_sum_reduction_over_towers() -> None:
    head = MultiLabelHead(2, loss_reduction="sum")
    modes = (ModeKeys.TRAIN, ModeKeys.EVAL)
    alone = [float(head.loss(LABELS, BOTH, mode=mode)) for mode in modes]
    with building(2, True):
        weighed = [float(head.loss(LABELS, BOTH, mode=mode)) for mode in modes]
    assert weighed == pytest.approx([2 * alone[0], alone[1]])
    assert alone[1] == pytest.approx(alone[0] / len(LABELS))  # an evaluation averages over examples


POINTS = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)


def two_optimizers(features: Any, labels: Any, mode: str) -> estimator.EstimatorSpec:
    hidden = keras.layers.Dense(3, "tanh", kernel_initializer="ones", name="hidden")(features)
    logits = keras.layers.Dense(1, kernel_initializer="ones", name="logits")(hidden)
    head = RegressionHead(loss_reduction="sum")
    optimizers = [
        estimator.OptimizerSpec(keras.optimizers.Adam(0.01), clip_norm=0.5, variables="hidden/"),
        estimator.OptimizerSpec(
            keras.optimizers.SGD(0.01, momentum=0.9),
            lambda step: 0.02 / (1.0 + tf.cast(step, tf.float32)),
            variables="logits/",
        ),
    ]
    return head.create_estimator_spec(features, mode, logits, labels, optimizers)


def test_two_optimizers_on_two_towers(tmp_path: Path) -> None:
    def read(size: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((POINTS, POINTS.sum(1))).batch(size).repeat()

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    config = estimator.RunConfig(train_distribute=strategy, save_summary_steps=1)
    one = estimator.Estimator(two_optimizers, tmp_path / "one").train(lambda: read(20), steps=3)
    two = estimator.Estimator(two_optimizers, tmp_path / "two", config).train(lambda: read(10), steps=3)
    for name in ("hidden/kernel", "logits/kernel", "optimizer_2/learning_rate"):
        np.testing.assert_allclose(two.get_variable_value(name), one.get_variable_value(name), rtol=1e-5, err_msg=name)
