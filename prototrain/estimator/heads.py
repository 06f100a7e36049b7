"""Heads, which compute loss, metrics, predictions and exports from logits, with the results of `tf.estimator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.actions.saved_model import DEFAULT
from prototrain.errors import ModelError
from prototrain.estimator.export import ClassificationOutput, PredictOutput, RegressionOutput
from prototrain.estimator.specs import EstimatorSpec, ModeKeys, OptimizerSpec
from prototrain.towers import tower_or_default

MEAN, SUM = "sum_over_batch_size", "sum"
"""Reductions of the examples' losses to the loss of a batch."""

Tensors = dict[str, Any]
Metrics = dict[str, keras.metrics.Metric]


class Head:
    """Base class of heads, which compute loss, metrics, predictions and exports from logits.

    Attributes:
        logits_dimension: the number of logits per example.
        loss_reduction: the reduction of the weighted losses of a batch: "sum_over_batch_size" (the mean) or "sum".
    """

    logits_dimension: int

    def __init__(self, weight_column: Any, loss_reduction: str, loss_fn: Any) -> None:
        if loss_reduction not in (MEAN, SUM):
            raise ModelError(f"there is no loss_reduction {loss_reduction!r}; there are {MEAN!r} and {SUM!r}")
        self.loss_reduction = loss_reduction
        self._weight_column = weight_column
        self._loss_fn = loss_fn

    # Subclasses implement these. Logits have the shape (examples, logits_dimension), labels come from `_labels`.

    def _labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _metrics(self, labels: Any, logits: Any, weights: Any) -> Metrics:
        raise NotImplementedError

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        raise NotImplementedError

    def export_outputs(self, logits: Any) -> dict[str, Any]:
        """Return the signatures of an exported model, by name."""
        raise NotImplementedError

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
            features, mode, labels: the arguments of `model_fn`.
            logits: a tensor of shape (examples, `logits_dimension`).
            optimizer: a Keras optimizer, an `OptimizerSpec`, or a list of these; required in the mode TRAIN.
            trainable_variables: the variables that a Keras optimizer trains; all if None.
            regularization_losses: scalars to add to the loss. The trainer adds the losses of layers, unless `model_fn`
                has requested them.

        Raises:
            ModelError: the shape or type of logits or labels is wrong, or there is no optimizer in the mode TRAIN.
        """
        predictions = self.predictions(logits)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions, export_outputs=self.export_outputs(logits))
        loss = self.loss(labels, logits, features, mode)
        if regularization_losses:
            loss += tf.add_n([tf.cast(one, loss.dtype) for one in regularization_losses])
        if mode == ModeKeys.EVAL:
            return EstimatorSpec(mode, predictions, loss, eval_metric_ops=self.metrics(features, logits, labels))
        if optimizer is None:
            raise ModelError(f"{type(self).__name__}.create_estimator_spec: give it an optimizer=, a Keras optimizer")
        if trainable_variables is not None and isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer = OptimizerSpec(optimizer, variables=list(trainable_variables))
        return EstimatorSpec(mode, predictions, loss, train_op=optimizer)

    def loss(self, labels: Any, logits: Any, features: Any = None, mode: str | None = None) -> tf.Tensor:
        """Return the scalar loss of a batch."""
        _, _, losses, weights = self._measured(labels, logits, features)
        total = tf.reduce_sum(losses if weights is None else losses * weights)
        if self.loss_reduction == MEAN or mode == ModeKeys.EVAL:  # the trainer averages over batches by their sizes
            return total / tf.cast(tf.size(losses), losses.dtype)
        # The trainer averages over the towers, so scale the sum to cover the examples of all towers.
        return total * tower_or_default().count if mode == ModeKeys.TRAIN else total

    def metrics(self, features: Any, logits: Any, labels: Any) -> Metrics:
        """Return the metrics, updated with a batch, by name."""
        logits, labels, losses, weights = self._measured(labels, logits, features)
        found = _metric(keras.metrics.Mean, "average_loss", losses, weights=weights)
        return found | self._metrics(labels, logits, weights)

    def predictions(self, logits: Any) -> Tensors:
        """Return all predictions by name."""
        return self._predictions(self._logits(logits))

    def _logits(self, logits: Any) -> tf.Tensor:
        found = tf.cast(tf.convert_to_tensor(logits), tf.float32)
        if found.shape.rank is None or found.shape.rank < 2 or found.shape[-1] != self.logits_dimension:
            raise ModelError(
                f"{type(self).__name__}: the logits must be of shape (examples, {self.logits_dimension}), not "
                f"{tuple(found.shape)}"
            )
        return found

    def _measured(self, labels: Any, logits: Any, features: Any) -> tuple[Any, Any, Any, Any]:
        """Return the logits, labels, losses and weights of the examples; weights may be None."""
        logits = self._logits(logits)
        if isinstance(labels, Mapping):
            raise ModelError(f"the head takes one tensor of labels, not a dict of {', '.join(labels)}")
        labels = self._labels(labels, logits)
        if self._loss_fn is None:
            losses = self._losses(labels, logits)
        else:
            losses = _as_rows(self._loss_fn(labels=labels, logits=logits), logits)
        return logits, labels, losses, _weights_of(features, self._weight_column, losses)


class _ClassHead(Head):
    """Base class of classification heads, with the names of the classes."""

    def __init__(self, n_classes: int, vocabulary: Any, *of_head: Any) -> None:
        super().__init__(*of_head)
        if n_classes < 2:
            raise ModelError(f"{type(self).__name__}: n_classes must be at least 2, not {n_classes}")
        self.n_classes = n_classes
        self._vocabulary = None if vocabulary is None else list(vocabulary)
        if self._vocabulary is not None and len(self._vocabulary) != n_classes:
            raise ModelError(f"label_vocabulary has {len(self._vocabulary)} labels for {n_classes} classes")

    def export_outputs(self, logits: Any) -> dict[str, Any]:
        found = self.predictions(logits)
        classes = ClassificationOutput(scores=found["probabilities"], classes=self._all_classes(logits))
        outputs = {DEFAULT: classes, "classification": classes, "predict": PredictOutput(found)}
        if "logistic" in found:
            outputs["regression"] = RegressionOutput(found["logistic"])
        return outputs

    def _all_classes(self, logits: Any) -> tf.Tensor:
        """Return the names of all classes, repeated for each example."""
        names = [str(index) for index in range(self.n_classes)] if self._vocabulary is None else self._vocabulary
        return _repeated(tf.constant(names), logits)

    def _classes(self, scores: tf.Tensor) -> Tensors:
        """Return the class predictions from scores of shape (examples, classes)."""
        ids = tf.argmax(scores, axis=-1)[..., tf.newaxis]
        return {
            "class_ids": ids,
            "classes": tf.as_string(ids) if self._vocabulary is None else tf.gather(tf.constant(self._vocabulary), ids),
            "all_class_ids": _repeated(tf.range(self.n_classes), scores),
            "all_classes": self._all_classes(scores),
        }

    def _numbered(self, labels: tf.Tensor) -> tf.Tensor:
        """Return labels as class ids, with -1 for out-of-vocabulary labels."""
        if (labels.dtype == tf.string) != (self._vocabulary is not None):
            raise ModelError(
                f"the labels are {labels.dtype.name}: texts need a label_vocabulary, numbers must not have it"
            )
        if self._vocabulary is None:
            return labels
        layer = keras.layers.StringLookup(vocabulary=self._vocabulary, oov_token="[not in the vocabulary]")
        return tf.cast(layer(labels), tf.int64) - 1

    def _ids(self, labels: tf.Tensor) -> tf.Tensor:
        """Return labels as int64 class ids."""
        found = self._numbered(labels)
        if not found.dtype.is_integer:
            raise ModelError(f"{type(self).__name__}: the labels must be whole numbers, not {found.dtype.name}")
        return _checked_range(tf.cast(found, tf.int64), self.n_classes)


class BinaryClassHead(_ClassHead):
    """Head for two classes with one logit and a sigmoid cross entropy loss.

    Args:
        weight_column: the name or the `numeric_column` of the feature with the weight of each example.
        label_vocabulary: the string labels of the classes 0 and 1; if None, labels are 0 and 1.
        loss_reduction: the reduction of the weighted losses of a batch: "sum_over_batch_size" (the mean) or "sum".
        loss_fn: a function of `labels` and `logits` that returns the losses of the examples and replaces the default.

    Raises:
        ModelError: an argument is invalid.
    """

    logits_dimension = 1

    def __init__(
        self,
        weight_column: Any = None,
        *,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = MEAN,
        loss_fn: Any = None,
    ) -> None:
        super().__init__(2, label_vocabulary, weight_column, loss_reduction, loss_fn)

    def _labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        return tf.cast(_checked_range(self._numbered(_as_rows(labels, logits, 1)), 2), tf.float32)

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        both = tf.concat([tf.zeros_like(logits), logits], axis=-1)
        found = {"logits": logits, "logistic": tf.sigmoid(logits), "probabilities": tf.nn.softmax(both)}
        return {**found, **self._classes(both)}

    def _metrics(self, labels: Any, logits: Any, weights: Any) -> Metrics:
        m, found = keras.metrics, self._predictions(logits)
        classes, chances = tf.cast(found["class_ids"], tf.float32), found["logistic"]
        metrics = _areas(labels, chances, weights)
        for name, kind in (("accuracy", m.Accuracy), ("precision", m.Precision), ("recall", m.Recall)):
            metrics |= _metric(kind, name, labels, classes, weights=weights)
        metrics |= _metric(m.Mean, "prediction/mean", chances, weights=weights)
        metrics |= _metric(m.Mean, "label/mean", labels, weights=weights)
        return metrics | _metric(_Baseline, "accuracy_baseline", labels, weights=weights)


class MultiClassHead(_ClassHead):
    """Head for exclusive classes with one logit per class and a softmax cross entropy loss.

    Args:
        n_classes: the number of classes, at least two.
        weight_column, label_vocabulary, loss_reduction, loss_fn: see `BinaryClassHead`.

    Raises:
        ModelError: an argument is invalid.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = MEAN,
        loss_fn: Any = None,
    ) -> None:
        super().__init__(n_classes, label_vocabulary, weight_column, loss_reduction, loss_fn)
        self.logits_dimension = n_classes

    def _labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        return self._ids(_as_rows(labels, logits, 1))

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        found = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels[..., 0], logits=logits)
        return found[..., tf.newaxis]

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        return {"logits": logits, "probabilities": tf.nn.softmax(logits), **self._classes(logits)}

    def _metrics(self, labels: Any, logits: Any, weights: Any) -> Metrics:
        classes = tf.argmax(logits, axis=-1)[..., tf.newaxis]
        return _metric(keras.metrics.Accuracy, "accuracy", labels, classes, weights=weights)


class MultiLabelHead(_ClassHead):
    """Head for multi-label classification with one logit per class.

    The loss of an example is the sigmoid cross entropy averaged over the classes. Labels are a multi-hot tensor of
    shape (examples, `n_classes`), or a sparse or ragged tensor with the classes of each example.

    Args:
        n_classes: the number of classes, at least two.
        label_vocabulary: the names of the classes, for string labels and for predictions.
        weight_column, loss_reduction, loss_fn: see `BinaryClassHead`.

    Raises:
        ModelError: an argument is invalid.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        *,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = MEAN,
        loss_fn: Any = None,
    ) -> None:
        super().__init__(n_classes, label_vocabulary, weight_column, loss_reduction, loss_fn)
        self.logits_dimension = n_classes

    def _labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        if isinstance(labels, tf.RaggedTensor):
            labels = labels.to_sparse()
        if isinstance(labels, tf.SparseTensor):
            labels = tf.sparse.to_indicator(labels.with_values(self._ids(labels.values)), self.n_classes)
        found = _as_rows(labels, logits, self.n_classes)
        if found.dtype == tf.string:
            raise ModelError("MultiLabelHead: give labels that are texts as a tf.SparseTensor or a tf.RaggedTensor")
        return tf.cast(_checked_range(found, 2), tf.float32)

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        found = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(found, axis=-1, keepdims=True)

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        return {"logits": logits, "probabilities": tf.sigmoid(logits), "classes": self._all_classes(logits)}

    def _metrics(self, labels: Any, logits: Any, weights: Any) -> Metrics:
        return _areas(labels, tf.sigmoid(logits), _spread(weights, labels))


class RegressionHead(Head):
    """Head for regression with a squared error loss.

    Args:
        label_dimension: the number of labels per example.
        weight_column, loss_reduction, loss_fn: see `BinaryClassHead`.

    Raises:
        ModelError: the `loss_reduction` is unknown.
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = MEAN,
        loss_fn: Any = None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn)
        self.logits_dimension = label_dimension

    def _labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        return tf.cast(_as_rows(labels, logits, self.logits_dimension), tf.float32)

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return (labels - logits) ** 2

    def _predictions(self, logits: tf.Tensor) -> Tensors:
        return {"predictions": logits}

    def export_outputs(self, logits: Any) -> dict[str, Any]:
        found = self.predictions(logits)
        value = RegressionOutput(found["predictions"])
        return {DEFAULT: value, "regression": value, "predict": PredictOutput(found)}

    def _metrics(self, labels: Any, logits: Any, weights: Any) -> Metrics:
        mean, found, spread = keras.metrics.Mean, self._predictions(logits)["predictions"], _spread(weights, labels)
        metrics = _metric(mean, "prediction/mean", found, weights=spread)
        return metrics | _metric(mean, "label/mean", labels, weights=spread)


class _Baseline(keras.metrics.Mean):  # type: ignore[misc]
    """The accuracy of always predicting the more frequent class, for labels 0 and 1."""

    def result(self) -> Any:
        mean = super().result()
        return keras.ops.maximum(mean, 1 - mean)


def _metric(kind: type, name: str, *values: Any, weights: Any = None, **options: Any) -> Metrics:
    """Return a new metric, updated with the values of a batch, by name."""
    if issubclass(kind, keras.metrics.Mean):
        options["dtype"] = "float64"  # float32 loses the digits of a mean over many batches
    metric = kind(name=name.replace("/", "_"), **options)
    metric.update_state(*values, sample_weight=weights)
    return {name: metric}


def _areas(labels: Any, scores: Any, weights: Any) -> Metrics:
    """Return the areas under the curves of scores from 0 to 1; the weights have the shape of the scores."""
    found = _metric(keras.metrics.AUC, "auc", labels, scores, weights=weights)
    return found | _metric(keras.metrics.AUC, "auc_precision_recall", labels, scores, weights=weights, curve="PR")


def _spread(weights: Any, labels: tf.Tensor) -> Any:
    """Return one weight per label from one weight per example."""
    return None if weights is None else tf.broadcast_to(weights, tf.shape(labels))


def _repeated(row: tf.Tensor, like: Any) -> tf.Tensor:
    """Return a row repeated for each example."""
    return tf.tile(row[tf.newaxis], [tf.shape(like)[0], 1])


def _as_rows(labels: Any, logits: tf.Tensor, width: int | None = None) -> tf.Tensor:
    """Return labels of shape (examples, width) from that shape or from (examples,)."""
    if labels is None:
        raise ModelError("the head needs labels to train and to evaluate: input_fn must give (features, labels)")
    given = found = tf.convert_to_tensor(labels)
    found = tf.cast(found, tf.int64) if found.dtype == tf.bool else found
    if found.shape.rank == logits.shape.rank - 1:
        found = found[..., tf.newaxis]
    if found.shape.rank != logits.shape.rank or (width is not None and found.shape[-1] != width):
        raise ModelError(f"the labels must be of shape (examples, {width or 1}), not {tuple(given.shape)}")
    return found


def _checked_range(labels: tf.Tensor, n_classes: int) -> tf.Tensor:
    """Return labels, checked to be class ids; in a traced step, the check runs with the step."""
    fits = tf.reduce_all((labels >= 0) & (labels <= n_classes - 1))
    what = f"labels must be from 0 to {n_classes - 1}, or in the label_vocabulary"
    if not tf.executing_eagerly():
        with tf.control_dependencies([tf.debugging.Assert(fits, [what, labels])]):
            return tf.identity(labels)
    if not fits:
        raise ModelError(f"{what}; the first batch has {np.unique(labels).tolist()[:5]}")
    return labels


def _weights_of(features: Any, column: Any, losses: tf.Tensor) -> tf.Tensor | None:
    """Return the weights of the examples, of shape (examples, 1) or the losses' shape, or None without a column."""
    if column is None:
        return None
    key = column if isinstance(column, str) else column.key
    if not isinstance(features, Mapping) or key not in features:
        raise ModelError(f"there is no feature {key!r}, which is the weight_column of the head")
    found = tf.cast(features[key], tf.float32)
    normalize = getattr(column, "normalizer_fn", None)
    found = found if normalize is None else normalize(found)
    found = found[..., tf.newaxis] if found.shape.rank == losses.shape.rank - 1 else found
    if found.shape.rank != losses.shape.rank or found.shape[-1] not in (1, losses.shape[-1]):
        raise ModelError(f"the weights {key!r} are of shape {tuple(found.shape)}, the losses of {tuple(losses.shape)}")
    return found
