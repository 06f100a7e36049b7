"""Heads give the losses, metrics and predictions of `tf.estimator`; the numbers are those of its own documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator import (
    BinaryClassHead,
    LogisticRegressionHead,
    ModeKeys,
    MultiClassHead,
    MultiHead,
    OptimizerSpec,
    PoissonRegressionHead,
    RegressionHead,
    feature_column,
)
from prototrain.estimator.export import signatures

LOGITS = tf.constant([[45.0], [-41.0]])
THREE = tf.constant([[10.0, 0, 0], [0, 10, 0]])


def measured(head: Any, features: Any, logits: Any, labels: Any, *losses: Any) -> dict[str, float]:
    spec = head.create_estimator_spec(features, ModeKeys.EVAL, logits, labels, regularization_losses=losses or None)
    return {"loss": float(spec.loss)} | {name: float(metric.result()) for name, metric in spec.eval_metric_ops.items()}


def test_two_classes() -> None:
    found = measured(BinaryClassHead(thresholds=[0.25]), {}, LOGITS, [1, 1])
    assert found == pytest.approx(
        {"loss": 20.5, "average_loss": 20.5, "accuracy": 0.5, "accuracy_baseline": 1, "auc": 0}
        | {"auc_precision_recall": 1, "label/mean": 1, "precision": 1, "prediction/mean": 0.5, "recall": 0.5}
        | {"accuracy/positive_threshold_0.25": 0.5, "precision/positive_threshold_0.25": 1}
        | {"recall/positive_threshold_0.25": 0.5},
        abs=1e-3,
    )
    found = BinaryClassHead(label_vocabulary=["no", "yes"]).predictions(LOGITS)
    assert list(found) == [
        *("logits", "logistic", "probabilities", "class_ids", "classes", "all_class_ids", "all_classes")
    ]
    assert found["classes"].numpy().tolist() == [[b"yes"], [b"no"]] and found["class_ids"].shape == (2, 1)
    assert found["all_classes"].numpy().tolist() == [[b"no", b"yes"]] * 2
    for head, labels in (
        (BinaryClassHead(label_vocabulary=["no", "yes"]), ["yes"] * 2),
        (BinaryClassHead(), [True] * 2),
    ):
        assert float(head.loss(tf.constant(labels), LOGITS)) == 20.5


def test_weights_and_reductions() -> None:
    features = {"w": tf.constant([[1.0], [3.0]])}
    losses = {"sum_over_batch_size": 61.5, "sum": 123.0, "weighted_mean": 30.75, "weighted_sum": 123.0}
    for reduction, loss in losses.items():
        head = BinaryClassHead(weight_column="w", loss_reduction=reduction)
        assert float(head.loss([1, 1], LOGITS, features)) == pytest.approx(loss)
        spec = head.create_estimator_spec(features, ModeKeys.EVAL, LOGITS, [1, 1])
        assert (None if spec.loss_weight is None else float(spec.loss_weight)) == (4 if loss == 30.75 else None)
    head = BinaryClassHead(weight_column=feature_column.numeric_column("w"))
    found = measured(head, features, LOGITS, [1, 0], tf.constant(1.0), tf.constant(2.0))
    assert found["average_loss"] == pytest.approx(0) and found["accuracy"] == 1.0
    assert found["label/mean"] == 0.25 and found["accuracy_baseline"] == 0.75  # by weight
    assert found["loss"] == pytest.approx(3.0) and found["regularization_loss"] == 3.0


def test_long_sums_keep_their_digits() -> None:
    """In float32, 2**24 + 1 is 2**24."""
    heads = [RegressionHead(), MultiHead([RegressionHead(name="a")])]
    for head, labels in zip(heads, ([0.0], {"a": [0.0]}), strict=True):
        metrics = head.metrics({}, tf.constant([[2.0**12]]), labels, [tf.constant(2.0**24)])
        for name in metrics.keys() & {"average_loss", "regularization_loss", "loss/a", "average_loss/a"}:
            for value in [1.0] * 7:
                metrics[name].update_state(value)
            assert float(metrics[name].result()) == 2**21 + 7 / 8, name


def test_several_classes() -> None:
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


def test_numbers() -> None:
    logits = tf.constant([[1.0, 2.0], [3.0, 5.0]])
    found = measured(RegressionHead(2), {}, logits, [[0, 2], [3, 3]])
    assert found == pytest.approx({"loss": 1.25, "average_loss": 1.25, "prediction/mean": 2.75, "label/mean": 2})
    features = {"w": tf.constant([0.0, 1.0])}
    assert measured(RegressionHead(2, "w"), features, logits, [[0, 2], [3, 3]])["average_loss"] == 2.0
    assert float(LogisticRegressionHead().loss([1, 1], LOGITS)) == 20.5
    assert set(LogisticRegressionHead().predictions(LOGITS)) == {"predictions", "logits"}
    expected = tf.nn.log_poisson_loss([[2.0]], [[0.5]], compute_full_loss=True)
    assert float(PoissonRegressionHead().loss([2], tf.constant([[0.5]]))) == pytest.approx(float(expected[0, 0]))


def test_several_heads() -> None:
    heads = MultiHead([MultiClassHead(3, name="kind"), RegressionHead(name="size")], head_weights=[1, 2])
    logits = tf.concat([THREE, [[1.0], [2.0]]], axis=1)
    labels = {"kind": tf.constant([1, 1]), "size": tf.constant([0.0, 0.0])}
    found = measured(heads, {}, logits, labels)
    assert found["loss"] == pytest.approx(10.0, abs=1e-3) and found["accuracy/kind"] == 0.5
    assert found["loss/kind"] == pytest.approx(5, abs=1e-3) and found["loss/size"] == found["average_loss/size"] == 2.5
    assert float(heads.loss(labels, {"kind": THREE, "size": logits[:, 3:]})) == pytest.approx(10.0, abs=1e-3)
    spec = heads.create_estimator_spec({}, ModeKeys.PREDICT, logits)
    assert ("kind", "class_ids") in spec.predictions and ("size", "predictions") in spec.predictions
    outputs = signatures(spec.export_outputs, None)
    assert {"serving_default", "kind", "size", "kind/predict", "size/regression", "predict"} <= set(outputs)
    assert "size/predictions" in outputs["predict"]


def test_what_trains_it() -> None:
    optimizer, weights = keras.optimizers.SGD(0.1), [keras.Variable(1.0)]
    head = BinaryClassHead()
    spec = head.create_estimator_spec({}, ModeKeys.TRAIN, LOGITS, [1, 0], optimizer, weights)
    assert isinstance(spec.train_op, OptimizerSpec) and spec.train_op.variables == weights
    assert head.create_estimator_spec({}, ModeKeys.TRAIN, LOGITS, [1, 0], train_op_fn=lambda _: optimizer).train_op


HEAD = BinaryClassHead()
CASES: dict[str, Callable[[], Any]] = {
    "no loss_reduction 'none'; there are auto, sum_over": lambda: BinaryClassHead(loss_reduction="none"),
    "thresholds must lie between 0 and 1": lambda: BinaryClassHead(thresholds=[1.0]),
    "n_classes must be more than 2, not 2": lambda: MultiClassHead(2),
    "label_vocabulary has 1 labels for 2 classes": lambda: BinaryClassHead(label_vocabulary=["a"]),
    r"logits must be of shape \(examples, 1\), not \(2, 3\)": lambda: HEAD.predictions(THREE),
    r"labels must be of shape \(examples, 1\), not \(2, 2\)": lambda: HEAD.loss([[1, 2], [1, 2]], LOGITS),
    "needs labels to train and to evaluate": lambda: HEAD.loss(None, LOGITS),
    "labels of the head are texts, so it needs a label_vocabulary": lambda: HEAD.loss(["a", "b"], LOGITS),
    "labels must be from 0 to 1, or in the label_vocabulary; the first batch has": lambda: HEAD.loss([0, 2], LOGITS),
    "must be whole numbers, not float32": lambda: MultiClassHead(3).loss([0.0, 1.0], THREE),
    "no feature 'w', which is the weight_column": lambda: BinaryClassHead("w").loss([1, 1], LOGITS, {}),
    "predicts no 'x'; it predicts logits": lambda: HEAD.predictions(LOGITS, ["x"]),
    "needs heads that have names": lambda: MultiHead([HEAD]),
    "labels lacks b": lambda: MultiHead([BinaryClassHead(name="a"), BinaryClassHead(name="b")]).loss({"a": 1}, LOGITS),
    "there must be 2 logits, not 1": lambda: MultiHead(
        [BinaryClassHead(name="a"), BinaryClassHead(name="b")]
    ).predictions(LOGITS),
    "give it an optimizer=": lambda: HEAD.create_estimator_spec({}, ModeKeys.TRAIN, LOGITS, [1, 1]),
}


@pytest.mark.parametrize("message", CASES)
def test_messages(message: str) -> None:
    with pytest.raises(ModelError, match=message):
        CASES[message]()


def test_a_wrong_label_in_a_traced_step() -> None:
    loss = tf.function(lambda labels: HEAD.loss(labels, LOGITS))
    np.testing.assert_allclose(loss(tf.constant([1, 1])), 20.5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be from 0 to 1"):
        loss(tf.constant([1, 5]))
