"""The base class of heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.labels import as_rows, weights_of
from prototrain.estimator.specs import EstimatorSpec, ModeKeys, OptimizerSpec
from prototrain.towers import tower_count

MEAN, SUM = "sum_over_batch_size", "sum"
"""Reductions of the losses of the examples to that of the batch."""

Tensors = dict[str, Any]
Metrics = dict[str, keras.metrics.Metric]


class Head:
    """Base of heads: from the logits of a network to loss, metrics, predictions and exports.

    Attributes:
        logits_dimension: how many logits there are for an example.
        loss_reduction: from the weighted losses of a batch to its loss: "sum_over_batch_size" (their mean) or "sum".
    """

    logits_dimension: int

    def __init__(self, weight_column: Any, loss_reduction: str, loss_fn: Any) -> None:
        if loss_reduction not in (MEAN, SUM):
            raise ModelError(f"there is no loss_reduction {loss_reduction!r}; there are {MEAN!r} and {SUM!r}")
        self.loss_reduction = loss_reduction
        self._weight_column = weight_column
        self._loss_fn = loss_fn

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        trainable_variables: Sequence[Any] | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        """Return the `EstimatorSpec` of a `model_fn`.

        Args:
            features, mode, labels: what `model_fn` was given.
            logits: of shape (examples, `logits_dimension`).
            optimizer: a Keras optimizer, an `OptimizerSpec`, or a list of these; required to train.
            trainable_variables: those that it trains; all if None.
            regularization_losses: are added to the loss. The losses of layers are added already, unless a
                `model_fn` has asked for them.

        Raises:
            ModelError: logits or labels do not fit, or there is no optimizer to train with.
        """
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, self.predictions(logits), export_outputs=self.export_outputs(logits))
        loss = self.loss(labels, logits, features, mode)
        if regularization_losses:
            loss += tf.add_n([tf.cast(one, loss.dtype) for one in regularization_losses])
        if mode == ModeKeys.EVAL:
            metrics = self.metrics(features, logits, labels)
            return EstimatorSpec(mode, self.predictions(logits), loss, eval_metric_ops=metrics)
        if optimizer is None:
            raise ModelError(f"{type(self).__name__}.create_estimator_spec: give it an optimizer=, a Keras optimizer")
        if trainable_variables is not None and isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer = OptimizerSpec(optimizer, variables=list(trainable_variables))
        return EstimatorSpec(mode, self.predictions(logits), loss, train_op=optimizer)

    def _metric(self, kind: type, name: str, *values: Any, weights: Any = None, **options: Any) -> Metrics:
        """A new metric of the values of a batch."""
        if issubclass(kind, keras.metrics.Mean):
            options["dtype"] = "float64"  # float32 loses the digits of a mean over many batches
        metric = kind(name=name.replace("/", "_"), **options)
        metric.update_state(*values, sample_weight=weights)
        return {name: metric}

    def _of_scores(
        self, labels: Any, scores: Any, weights: Any, thresholds: Sequence[float], spread: Any = None
    ) -> Metrics:
        """The areas under the curves, and accuracy, precision and recall at each of the thresholds.

        Args:
            labels: 0 or 1.
            scores: from 0 to 1.
            weights: of the examples.
            thresholds: between 0 and 1.
            spread: weights for each of the scores, where an example has several.
        """
        m, spread = keras.metrics, weights if spread is None else spread
        found = self._metric(m.AUC, "auc", labels, scores, weights=spread)
        found |= self._metric(m.AUC, "auc_precision_recall", labels, scores, weights=spread, curve="PR")
        for at in thresholds:
            end = f"positive_threshold_{at:g}"
            # This one takes the mean of each example.
            found |= self._metric(m.BinaryAccuracy, f"accuracy/{end}", labels, scores, weights=weights, threshold=at)
            for name, kind in (("precision", m.Precision), ("recall", m.Recall)):
                found |= self._metric(kind, f"{name}/{end}", labels, scores, weights=spread, thresholds=at)
        return found

    def _logits(self, logits: Any) -> tf.Tensor:
        found = tf.cast(tf.convert_to_tensor(logits), tf.float32)
        if found.shape.rank is None or found.shape.rank < 2 or found.shape[-1] != self.logits_dimension:
            raise ModelError(
                f"{type(self).__name__}: the logits must be of shape (examples, {self.logits_dimension}), not "
                f"{tuple(found.shape)}"
            )
        return found

    def _labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _measured(self, labels: Any, logits: Any, features: Any) -> tuple[Any, Any, Any, Any]:
        """Logits, labels, the losses of the examples, and their weights or None."""
        logits = self._logits(logits)
        labels = self._labels(labels, logits)
        if self._loss_fn is None:
            losses = self._losses(labels, logits)
        else:
            losses = as_rows(self._loss_fn(labels=labels, logits=logits), logits)
        return logits, labels, losses, weights_of(features, self._weight_column, losses)

    def loss(self, labels: Any, logits: Any, features: Any = None, mode: str | None = None) -> tf.Tensor:
        """The loss of a batch, a scalar."""
        _, _, losses, weights = self._measured(labels, logits, features)
        total = tf.reduce_sum(losses if weights is None else losses * weights)
        if self.loss_reduction == MEAN:
            return total / tf.cast(tf.size(losses), losses.dtype)
        # The engine takes the mean over the towers; a sum is to be that over the examples of all of them.
        return total * tower_count() if mode == ModeKeys.TRAIN else total

    def metrics(self, features: Any, logits: Any, labels: Any) -> Metrics:
        """Metrics of a batch, by name."""
        logits, labels, losses, weights = self._measured(labels, logits, features)
        found = self._metric(keras.metrics.Mean, "average_loss", losses, weights=weights)
        return found | self._metrics(labels, logits, weights)

    def export_outputs(self, logits: Any) -> dict[str, Any]:
        """The signatures of an exported model, by name."""
        raise NotImplementedError

    def _metrics(self, labels: Any, logits: Any, weights: Any) -> Metrics:
        raise NotImplementedError

    def predictions(self, logits: Any) -> Tensors:
        """Everything that there is to predict, by name."""
        return self._predictions(self._logits(logits))

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        raise NotImplementedError


def checked_thresholds(thresholds: Sequence[float] | None) -> tuple[float, ...]:
    """Thresholds of a head.

    Raises:
        ModelError: one does not lie between 0 and 1.
    """
    found = tuple(thresholds or ())
    if not all(0 < threshold < 1 for threshold in found):
        raise ModelError(f"thresholds must lie between 0 and 1, not {found}")
    return found


def checked_vocabulary(label_vocabulary: Sequence[str] | None, n_classes: int) -> list[str] | None:
    """Return the names of the classes of a head.

    Raises:
        ModelError: there are not as many.
    """
    found = None if label_vocabulary is None else list(label_vocabulary)
    if found is not None and len(found) != n_classes:
        raise ModelError(f"label_vocabulary has {len(found)} labels for {n_classes} classes")
    return found
