"""Heads: from the logits of a network to loss, metrics, predictions and exports, with the numbers of `tf.estimator`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.base_head import (
    MEAN,
    Head,
    Metrics,
    Tensors,
    checked_thresholds,
    checked_vocabulary,
)
from prototrain.estimator.export import DEFAULT, ClassificationOutput, PredictOutput, RegressionOutput
from prototrain.estimator.labels import all_classes, as_rows, checked_range, columns_of, multi_hot, numbered


class _ClassHead(Head):
    """Base of heads for one class of several."""

    n_classes: int
    _vocabulary: list[str] | None

    def _classes(self, scores: tf.Tensor) -> Tensors:
        """Return the predictions of classes, from a score for each."""
        ids = tf.argmax(scores, axis=-1)[..., tf.newaxis]
        named = tf.as_string(ids) if self._vocabulary is None else tf.gather(tf.constant(self._vocabulary), ids)
        everything = columns_of(tf.range(self.n_classes), scores)
        every_class = columns_of(all_classes(self.n_classes, self._vocabulary), scores)
        return {"class_ids": ids, "classes": named, "all_class_ids": everything, "all_classes": every_class}

    def export_outputs(self, logits: Any) -> dict[str, Any]:
        found = self.predictions(logits)
        classes = ClassificationOutput(scores=found["probabilities"], classes=found["all_classes"])
        outputs = {DEFAULT: classes, "classification": classes, "predict": PredictOutput(found)}
        if "logistic" in found:
            outputs["regression"] = RegressionOutput(found["logistic"])
        return outputs


class BinaryClassHead(_ClassHead):
    """Two classes, by one logit; the loss is the sigmoid cross entropy.

    Args:
        weight_column: the feature, or its `numeric_column`, that has the weight of each example.
        thresholds: further ones, between 0 and 1, at which accuracy, precision and recall are measured.
        label_vocabulary: the labels of the classes 0 and 1; without it labels are 0 and 1.
        loss_reduction: from the weighted losses of a batch to its loss: "sum_over_batch_size" (their mean) or "sum".
        loss_fn: from `labels` and `logits` to the losses of the examples, instead of the usual ones.

    Raises:
        ModelError: an argument is out of its range.
    """

    logits_dimension = 1
    n_classes = 2

    def __init__(
        self,
        weight_column: Any = None,
        thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = MEAN,
        loss_fn: Any = None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn)
        self._vocabulary = checked_vocabulary(label_vocabulary, self.n_classes)
        self._thresholds = checked_thresholds(thresholds)

    def _labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        found = numbered(as_rows(labels, logits, 1), self._vocabulary)
        return tf.cast(checked_range(found, self.n_classes), tf.float32)

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        both = tf.concat([tf.zeros_like(logits), logits], axis=-1)
        found = {"logits": logits, "logistic": tf.sigmoid(logits), "probabilities": tf.nn.softmax(both)}
        return {**found, **self._classes(both)}

    def _metrics(self, labels: Any, logits: Any, weights: Any) -> Metrics:
        m, found = keras.metrics, self._predictions(logits)
        classes, chances = tf.cast(found["class_ids"], tf.float32), found["logistic"]
        metrics = self._of_scores(labels, chances, weights, self._thresholds)
        for name, kind in (("accuracy", m.Accuracy), ("precision", m.Precision), ("recall", m.Recall)):
            metrics |= self._metric(kind, name, labels, classes, weights=weights)
        for name, kind, values in (
            ("prediction/mean", m.Mean, chances),
            ("label/mean", m.Mean, labels),
            ("accuracy_baseline", _Baseline, labels),
        ):
            metrics |= self._metric(kind, name, values, weights=weights)
        return metrics


class MultiClassHead(_ClassHead):
    """Several classes, by one logit each; the loss is the softmax cross entropy.

    Args:
        n_classes: how many there are, more than two.
        weight_column, label_vocabulary, loss_reduction, loss_fn: see `BinaryClassHead`.

    Raises:
        ModelError: an argument is out of its range.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = MEAN,
        loss_fn: Any = None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn)
        if not isinstance(n_classes, int) or n_classes <= 2:
            raise ModelError(f"MultiClassHead: n_classes must be more than 2, not {n_classes!r}; see BinaryClassHead")
        self.n_classes = self.logits_dimension = n_classes
        self._vocabulary = checked_vocabulary(label_vocabulary, self.n_classes)

    def _labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        found = numbered(as_rows(labels, logits, 1), self._vocabulary)
        if not found.dtype.is_integer:
            raise ModelError(f"MultiClassHead: the labels must be whole numbers, not {found.dtype.name}")
        return checked_range(tf.cast(found, tf.int64), self.n_classes)

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        found = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels[..., 0], logits=logits)
        return found[..., tf.newaxis]

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        return {"logits": logits, "probabilities": tf.nn.softmax(logits), **self._classes(logits)}

    def _metrics(self, labels: Any, logits: Any, weights: Any) -> Metrics:
        classes = self._predictions(logits)["class_ids"]
        return self._metric(keras.metrics.Accuracy, "accuracy", labels, classes, weights=weights)


class MultiLabelHead(Head):
    """Classes of which an example may have several or none, by one logit each.

    The loss of an example is the mean over the classes of the sigmoid cross entropy. Labels are numbers 0 and 1 of
    shape (examples, `n_classes`), or sparse or ragged, with the classes of each example.

    Args:
        n_classes: how many there are, at least two.
        thresholds: between 0 and 1, at which accuracy, precision and recall are measured.
        label_vocabulary: what the classes are called, in labels that are texts and in predictions.
        weight_column, loss_reduction, loss_fn: see `BinaryClassHead`.

    Raises:
        ModelError: an argument is out of its range.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = MEAN,
        loss_fn: Any = None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn)
        if not isinstance(n_classes, int) or n_classes < 2:
            raise ModelError(f"MultiLabelHead: n_classes must be at least 2, not {n_classes!r}; see BinaryClassHead")
        self.n_classes = self.logits_dimension = n_classes
        self._thresholds = checked_thresholds(thresholds)
        self._vocabulary = checked_vocabulary(label_vocabulary, n_classes)

    def _labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        found = as_rows(multi_hot(labels, self.n_classes, self._vocabulary), logits, self.n_classes)
        if found.dtype == tf.string:
            raise ModelError("MultiLabelHead: give labels that are texts as a tf.SparseTensor or a tf.RaggedTensor")
        return tf.cast(checked_range(found, 2), tf.float32)

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        found = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(found, axis=-1, keepdims=True)

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        classes = columns_of(all_classes(self.n_classes, self._vocabulary), logits)
        return {"logits": logits, "probabilities": tf.sigmoid(logits), "classes": classes}

    def export_outputs(self, logits: Any) -> dict[str, Any]:
        found = self.predictions(logits)
        classes = ClassificationOutput(scores=found["probabilities"], classes=found["classes"])
        return {DEFAULT: classes, "classification": classes, "predict": PredictOutput(found)}

    def _metrics(self, labels: Any, logits: Any, weights: Any) -> Metrics:
        spread = None if weights is None else tf.broadcast_to(weights, tf.shape(labels))
        return self._of_scores(labels, tf.sigmoid(logits), weights, self._thresholds, spread)


class RegressionHead(Head):
    """Numbers; the loss is the squared difference.

    Args:
        label_dimension: how many numbers an example has.
        weight_column, loss_reduction, loss_fn: see `BinaryClassHead`.
        inverse_link_fn: from logits to predictions.

    Raises:
        ModelError: an argument is out of its range.
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = MEAN,
        loss_fn: Any = None,
        inverse_link_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn)
        if label_dimension < 1:
            raise ModelError(f"RegressionHead: label_dimension must be at least 1, not {label_dimension}")
        self.logits_dimension = label_dimension
        self._inverse_link_fn = inverse_link_fn

    def _labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        return tf.cast(as_rows(labels, logits, self.logits_dimension), tf.float32)

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return (labels - logits) ** 2

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        if self._inverse_link_fn is None:
            return {"predictions": logits}
        return {"predictions": self._inverse_link_fn(logits), "logits": logits}

    def export_outputs(self, logits: Any) -> dict[str, Any]:
        found = self.predictions(logits)
        value = RegressionOutput(found["predictions"])
        return {DEFAULT: value, "regression": value, "predict": PredictOutput(found)}

    def _metrics(self, labels: Any, logits: Any, weights: Any) -> Metrics:
        if weights is not None:
            weights = tf.broadcast_to(weights, tf.shape(labels))
        mean, found = keras.metrics.Mean, self._predictions(logits)["predictions"]
        metrics = self._metric(mean, "prediction/mean", found, weights=weights)
        return metrics | self._metric(mean, "label/mean", labels, weights=weights)


def LogisticRegressionHead(weight_column: Any = None, loss_reduction: str = MEAN) -> RegressionHead:
    """A number between 0 and 1, by one logit; the loss is the sigmoid cross entropy. See `RegressionHead`."""

    def loss_fn(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    return RegressionHead(1, weight_column, loss_reduction, loss_fn, tf.sigmoid)


def PoissonRegressionHead(
    label_dimension: int = 1,
    weight_column: Any = None,
    loss_reduction: str = MEAN,
    compute_full_loss: bool = True,
) -> RegressionHead:
    """Counts, by the logarithm of their mean; the loss is that of Poisson. See `RegressionHead`."""

    def loss_fn(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_poisson_loss(targets=labels, log_input=logits, compute_full_loss=compute_full_loss)

    return RegressionHead(label_dimension, weight_column, loss_reduction, loss_fn, tf.exp)


class _Baseline(keras.metrics.Mean):  # type: ignore[misc]
    """The accuracy of always saying what is more frequent, from labels of 0 and 1."""

    def result(self) -> Any:
        mean = super().result()
        return keras.ops.maximum(mean, 1 - mean)
