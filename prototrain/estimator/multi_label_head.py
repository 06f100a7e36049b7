"""A head of classes of which an example may have several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.base_head import Metrics, SingleHead, Tensors, checked_thresholds, checked_vocabulary
from prototrain.estimator.export import DEFAULT, ClassificationOutput, PredictOutput
from prototrain.estimator.labels import all_classes, as_rows, checked_range, columns_of, multi_hot


class MultiLabelHead(SingleHead):
    """Classes of which an example may have several or none, by one logit each.

    The loss of an example is the mean over the classes of the sigmoid cross entropy. Labels are numbers 0 and 1 of
    shape (examples, `n_classes`), or sparse or ragged, with the classes of each example.

    Args:
        n_classes: how many there are, at least two.
        thresholds: between 0 and 1, at which accuracy, precision and recall are measured.
        label_vocabulary: what the classes are called, in labels that are texts and in predictions.
        weight_column, loss_reduction, loss_fn, name: see `BinaryClassHead`.

    Raises:
        ModelError: an argument is out of its range.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: Any = "sum_over_batch_size",
        loss_fn: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn, name)
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
