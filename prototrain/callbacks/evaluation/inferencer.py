"""Measurements of an `InferenceRunner` on held-out data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import CallbackError, ModelError
from prototrain.model.net import loss_weight


class Inferencer:
    """Turns a model's tensors on held-out data into scalars: sums over the batches, and what follows from the sums.

    A share of mistakes, for example:

        class Mistakes(Inferencer):
            def sums(self, net, size):
                return [tf.reduce_sum(net["wrong"]), size]

            def result(self, sums):
                return {"mistakes": sums[0] / sums[1]}

    Attributes:
        scalar_names: of the result; by default they are not known before a pass.
    """

    scalar_names: Sequence[str] = ("*",)

    def reset(self) -> None:
        """Called before each pass."""

    def sums(self, net: Mapping[str, Any], size: tf.Tensor) -> Sequence[Any]:
        """Look at one batch; traced.

        Args:
            net: the model's tensors and the batch's inputs, by name.
            size: the number of examples in the batch, a float64 scalar; 1 if its tensors differ in it.

        Returns:
            scalar tensors, always equally many, to be added up in float64.
        """
        raise NotImplementedError

    def result(self, sums: Sequence[float]) -> dict[str, float]:
        """Turn the sums over all batches into scalars by name."""
        raise NotImplementedError


class ScalarStats(Inferencer):
    """Averages tensors over all examples.

    Args:
        names: of tensors in the model's mapping: one number for each example, or scalars, which are weighted by the
            model's "loss_weight", or else by the number of examples.
    """

    def __init__(self, names: str | Sequence[str]) -> None:
        self.names = self.scalar_names = [names] if isinstance(names, str) else list(names)

    def sums(self, net: Mapping[str, Any], size: tf.Tensor) -> Sequence[Any]:
        of_batch = loss_weight(net)
        found: list[tf.Tensor] = []
        for name in self.names:
            value = tf.cast(tensor(net, name), tf.float64)
            # Rows are counted, since a batch may have more of them than it has examples.
            rows = tf.cast(tf.shape(value)[0], tf.float64) if value.shape.rank else size
            weight = rows if value.shape.rank or of_batch is None else of_batch
            found += [weight, tf.math.multiply_no_nan(tf.reduce_mean(value), weight)]
        return found

    def result(self, sums: Sequence[float]) -> dict[str, float]:
        return {name: _ratio(sums[2 * i + 1], sums[2 * i]) for i, name in enumerate(self.names)}


class ClassificationError(Inferencer):
    """The share of wrong examples.

    Args:
        wrong: the name of a tensor with one entry for each example: true, or not 0, if the model was wrong.
        name: of the scalar.
    """

    def __init__(self, wrong: str = "wrong", *, name: str = "error") -> None:
        self.wrong = wrong
        self.scalar_names = [name]

    def sums(self, net: Mapping[str, Any], size: tf.Tensor) -> Sequence[Any]:
        wrong = tensor(net, self.wrong)
        if wrong.shape.rank == 0:
            raise ModelError(
                f"ClassificationError: {self.wrong!r} must have one entry for each example; it is a scalar"
            )
        return [tf.math.count_nonzero(wrong), tf.size(wrong)]

    def result(self, sums: Sequence[float]) -> dict[str, float]:
        return {self.scalar_names[0]: _ratio(sums[0], sums[1])}


class BinaryClassificationStats(Inferencer):
    """Precision, recall, F1, accuracy and the counts behind them; 0 / 0 is 0.

    Args:
        predicted: the name of a tensor of 0 and 1, or of booleans, for each example.
        label: the name of the true ones, in the model's mapping or in the batch.
        prefix: what the scalars' names start with.
    """

    def __init__(self, predicted: str, label: str, *, prefix: str = "") -> None:
        self.predicted = predicted
        self.label = label
        self.prefix = prefix
        self.scalar_names = list(self.result([0.0] * 4))

    def sums(self, net: Mapping[str, Any], size: tf.Tensor) -> Sequence[Any]:
        predicted, label = (tf.reshape(tf.cast(tensor(net, n), tf.bool), [-1]) for n in (self.predicted, self.label))
        both = (predicted & label, predicted & ~label, ~predicted & label, ~predicted & ~label)
        return [tf.math.count_nonzero(cell) for cell in both]

    def result(self, sums: Sequence[float]) -> dict[str, float]:
        true_positive, false_positive, false_negative, true_negative = sums
        precision = _ratio(true_positive, true_positive + false_positive, otherwise=0.0)
        recall = _ratio(true_positive, true_positive + false_negative, otherwise=0.0)
        stats = {
            "precision": precision,
            "recall": recall,
            "f1": _ratio(2 * precision * recall, precision + recall, otherwise=0.0),
            "accuracy": _ratio(true_positive + true_negative, sum(sums)),
            "true_positives": true_positive,
            "false_positives": false_positive,
            "false_negatives": false_negative,
            "true_negatives": true_negative,
        }
        return {f"{self.prefix}{name}": value for name, value in stats.items()}


class KerasMetric(Inferencer):
    """Any Keras metric that has a single number as its result; ``dtype="float64"`` keeps the digits of long sums.

    Args:
        metric: such as ``keras.metrics.AUC()``.
        names: of the tensors that its `update_state` takes, in order; usually labels and predictions.
        name: of the scalar; the metric's own name if None.
    """

    def __init__(self, metric: keras.metrics.Metric, *names: str, name: str | None = None) -> None:
        if not names:
            raise CallbackError(f"KerasMetric({metric.name}): name the tensors that it takes, as 'labels', 'logits'")
        self.metric = metric
        self.names = names
        self.scalar_names = [name or str(metric.name)]

    def reset(self) -> None:
        self.metric.reset_state()

    def sums(self, net: Mapping[str, Any], size: tf.Tensor) -> Sequence[Any]:
        self.metric.update_state(*(tensor(net, name) for name in self.names))
        return []

    def result(self, sums: Sequence[float]) -> dict[str, float]:
        return {self.scalar_names[0]: float(self.metric.result())}


def tensor(net: Mapping[str, Any], name: str) -> tf.Tensor:
    """A tensor of the model by name; a ModelError if there is none."""
    if name not in net:
        raise ModelError(f"the model has no tensor {name!r}; it has: {', '.join(net)}")
    return tf.convert_to_tensor(net[name])


def _ratio(part: float, whole: float, *, otherwise: float = math.nan) -> float:
    return part / whole if whole else otherwise
