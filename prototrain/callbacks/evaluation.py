"""Callbacks that evaluate the model on held-out data, and moving averages of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.checkpoint.state import preserve_values
from prototrain.checkpoint.weights import AVERAGES
from prototrain.data.batches import counted_examples
from prototrain.errors import CallbackError, DataError, ModelError, StepError
from prototrain.model.evaluation import CompiledPass, require_end
from prototrain.model.net import LOSS_WEIGHT, loss_weight
from prototrain.system.terminal import announcing, did_you_mean
from prototrain.system.tracebacks import cause

Evaluate = Callable[[str, int], Mapping[str, float] | None]
_UNNAMED = "inference"  # the name of a dataset that is given as an object


class Validation(Callback):
    """Evaluates the model on a dataset and records the averages of its scalars as ``vld/...``.

        Validation().every(steps=100)

    Batches are weighted by the model's "loss_weight" if present, and by their number of examples otherwise. Each
    evaluation starts at the first batch and leaves the seeds of random layers as they are. If a stop request interrupts
    it, the resumed run repeats it. Before the first step, it is tested on two batches without side effects.

    Args:
        dataset: the name of one of the model's datasets. Defaults to "vld"; a model without "vld" is not validated.
        batches: the number of batches to use; 0 for the whole dataset.
        prefix: prefix of the scalars' names. Defaults to the dataset's name.
        evaluate: takes the dataset's name and the number of batches; returns the scalars by name, or None if it was
            interrupted. Defaults to the trainer's `evaluate`.
        rehearse: whether to test the evaluation before the first step. Ignored if `evaluate` is given.

    Raises:
        CallbackError: at setup, if `batches` is not a non-negative integer, or the trainer cannot evaluate and
            `evaluate` is not given.
        DataError: at setup, if the named dataset is missing, or is infinite and `batches` is 0.
    """

    def __init__(
        self,
        dataset: str | None = None,
        *,
        batches: int = 0,
        prefix: str | None = None,
        evaluate: Evaluate | None = None,
        rehearse: bool = True,
    ) -> None:
        self._is_named = dataset is not None
        self.dataset = "vld" if dataset is None else dataset
        self.batches = batches
        self.prefix = self.dataset if prefix is None else prefix
        self._evaluate = evaluate
        self._rehearse = rehearse and evaluate is None

    def setup(self) -> None:
        trainer, self._is_off = self.trainer, False
        if self._evaluate is not None:
            return
        if not trainer.can_evaluate:
            kind = type(trainer).__name__
            raise CallbackError(f"Validation: {kind} has no evaluate(); define it, or give Validation(evaluate=...)")
        if trainer.datasets is not None and not self._is_named and self.dataset not in trainer.datasets:
            self._is_off = True
            trainer.log(f"no validation: the model's {_no_such_dataset(self.dataset, trainer.datasets)}")
        elif trainer.datasets is not None:
            _named_dataset(self, self.dataset, self.batches)

    def check_run(self) -> None:
        if self._rehearse and not self._is_off:
            # Outside of `evaluating`, since this is not an evaluation for other callbacks.
            with announcing(f"testing the validation on {self.dataset!r}", self.trainer.log):
                self.trainer._rehearse(self.dataset, self.batches)

    def trigger(self) -> None:
        if self._is_off:
            return
        evaluate = self._evaluate or self.trainer.evaluate
        with self.trainer.evaluating():
            scalars = evaluate(self.dataset, self.batches)
        if scalars is None:
            self.trainer.stop.check()
        if not isinstance(scalars, Mapping):
            raise CallbackError(f"Validation: evaluate({self.dataset!r}) returned {scalars!r}, not scalars by name")
        self.trainer.monitors.put_scalars(scalars, self.prefix)


def _named_dataset(callback: Callback, dataset: Any, batches: int) -> Any:
    """Return a dataset of the trainer by name; raise an error if it or the number of batches does not suit."""
    known = callback.trainer.datasets or {}
    if isinstance(dataset, str) and dataset not in known:
        raise DataError(f"{callback.name}: {_no_such_dataset(dataset, known)}")
    if not isinstance(batches, Integral) or batches < 0:
        raise CallbackError(f"{callback.name}: batches must be a whole number, 0 for all, got {batches!r}")
    found = known[dataset] if isinstance(dataset, str) else dataset
    if not batches:
        require_end(dataset if isinstance(dataset, str) else _UNNAMED, found)
    return found


def _no_such_dataset(name: str, known: Collection[str]) -> str:
    """Return an error message with the closest match and all known names."""
    guess = did_you_mean(name, known) or ";"
    return f"datasets() has no {name!r}{guess} it has: {', '.join(known) or 'none'}"


class Inferencer:
    """Computes scalars from a model's tensors on held-out data, as a function of sums over the batches.

    class Mistakes(Inferencer):
        def sums(self, net, size):
            return [tf.reduce_sum(net["wrong"]), size]

        def result(self, sums):
            return {"mistakes": sums[0] / sums[1]}
    """

    def reset(self) -> None:
        """Called before each pass."""

    def sums(self, net: Mapping[str, Any], size: tf.Tensor) -> Sequence[Any]:
        """Compute the sums of one batch. This method is traced.

        Args:
            net: the model's tensors and the batch's inputs, by name.
            size: the number of examples in the batch, a float64 scalar; 1 if the batch's tensors disagree.

        Returns:
            A fixed number of scalar tensors, to be added up in float64.
        """
        raise NotImplementedError

    def result(self, sums: Sequence[float]) -> dict[str, float]:
        """Compute scalars, by name, from the sums over all batches."""
        raise NotImplementedError


class ScalarStats(Inferencer):
    """Averages tensors over all examples.

    Args:
        names: names of the model's tensors. A tensor has one number per example, or is a scalar, which is weighted by
            the model's "loss_weight" if present and by the number of examples otherwise.
    """

    def __init__(self, names: str | Sequence[str]) -> None:
        self.names = [names] if isinstance(names, str) else list(names)

    def sums(self, net: Mapping[str, Any], size: tf.Tensor) -> Sequence[Any]:
        of_batch = loss_weight(net)
        found: list[tf.Tensor] = []
        for name in self.names:
            value = tf.cast(tensor(net, name), tf.float64)
            # Count rows, since a tensor may have more rows than the batch has examples.
            rows = tf.cast(tf.shape(value)[0], tf.float64) if value.shape.rank else size
            weight = rows if value.shape.rank or of_batch is None else of_batch
            found += [weight, tf.math.multiply_no_nan(tf.reduce_mean(value), weight)]
        return found

    def result(self, sums: Sequence[float]) -> dict[str, float]:
        return {name: _ratio(sums[2 * i + 1], sums[2 * i]) for i, name in enumerate(self.names)}


class ClassificationError(Inferencer):
    """Computes the error rate.

    Args:
        wrong: the name of a tensor with one entry per example, which is true or nonzero if the prediction is wrong.
        name: the name of the scalar.
    """

    def __init__(self, wrong: str = "wrong", *, name: str = "error") -> None:
        self.wrong = wrong
        self.name = name

    def sums(self, net: Mapping[str, Any], size: tf.Tensor) -> Sequence[Any]:
        wrong = tensor(net, self.wrong)
        if wrong.shape.rank == 0:
            raise ModelError(f"ClassificationError: {self.wrong!r} must have one entry per example; it is a scalar")
        return [tf.math.count_nonzero(wrong), tf.size(wrong)]

    def result(self, sums: Sequence[float]) -> dict[str, float]:
        return {self.name: _ratio(sums[0], sums[1])}


class BinaryClassificationStats(Inferencer):
    """Computes precision, recall, F1, accuracy and the confusion counts.

    Precision, recall and F1 are 0 if they are undefined.

    Args:
        predicted: the name of a tensor of predictions: booleans, or 0 and 1.
        label: the name of the tensor of labels, from the model or the batch.
        prefix: prefix of the scalars' names.
    """

    def __init__(self, predicted: str, label: str, *, prefix: str = "") -> None:
        self.predicted = predicted
        self.label = label
        self.prefix = prefix

    def sums(self, net: Mapping[str, Any], size: tf.Tensor) -> Sequence[Any]:
        predicted, label = (tf.reshape(tf.cast(tensor(net, n), tf.bool), [-1]) for n in (self.predicted, self.label))
        both = (predicted & label, predicted & ~label, ~predicted & label, ~predicted & ~label)
        return [tf.math.count_nonzero(cell) for cell in both]

    def result(self, sums: Sequence[float]) -> dict[str, float]:
        names = ("true_positives", "false_positives", "false_negatives", "true_negatives")
        correct, false_positive, false_negative, correct_negative = sums
        stats = {
            "precision": _ratio(correct, correct + false_positive, otherwise=0.0),
            "recall": _ratio(correct, correct + false_negative, otherwise=0.0),
            "f1": _ratio(2 * correct, 2 * correct + false_positive + false_negative, otherwise=0.0),
            "accuracy": _ratio(correct + correct_negative, sum(sums)),
        }
        return {f"{self.prefix}{name}": value for name, value in [*stats.items(), *zip(names, sums, strict=True)]}


class KerasMetric(Inferencer):
    """Computes a Keras metric.

    The scalars of a metric with several values, such as one per class, are ``<name>/0``, ``<name>/1`` and so on. Create
    the metric with ``dtype="float64"`` to keep the precision of long sums. A scalar of a smaller last batch counts
    fully; use `ScalarStats` for scalars.

    Args:
        metric: a Keras metric, such as ``keras.metrics.AUC()``.
        names: names of the tensors to pass to `update_state`, in order; usually labels and predictions.
        name: the name of the scalar. Defaults to the metric's name. A metric whose result is a dict uses its own names.
    """

    def __init__(self, metric: keras.metrics.Metric, *names: str, name: str | None = None) -> None:
        if not isinstance(metric, keras.metrics.Metric):
            raise CallbackError(f"KerasMetric takes a metric such as keras.metrics.AUC(), not {metric!r}")
        if not names:
            raise CallbackError(f"KerasMetric({metric.name}): name the tensors it takes, such as 'labels', 'logits'")
        self.metric = metric
        self.names = names
        self.name = name or str(metric.name)

    def reset(self) -> None:
        self.metric.reset_state()

    def sums(self, net: Mapping[str, Any], size: tf.Tensor) -> Sequence[Any]:
        values = [tensor(net, name) for name in self.names]
        # Functions such as the mean absolute error average over the last axis, so Keras's `fit` adds one to vectors.
        if isinstance(self.metric, keras.metrics.MeanMetricWrapper) and all(one.shape.rank == 1 for one in values[:2]):
            values[:2] = [one[:, tf.newaxis] for one in values[:2]]
        self.metric.update_state(*values)
        return []

    def result(self, sums: Sequence[float]) -> dict[str, float]:
        found = self.metric.result()
        return metric_scalars(found if isinstance(found, Mapping) else {self.name: found})


def metric_scalars(found: Mapping[str, Any]) -> dict[str, float]:
    """Return results of Keras metrics as scalars; one with several values becomes ``<name>/<index>``."""
    single: dict[str, float] = {}
    for name, value in found.items():
        numbers = np.ravel(value).tolist()
        single |= {name: numbers[0]} if len(numbers) == 1 else {f"{name}/{n}": one for n, one in enumerate(numbers)}
    return single


def tensor(net: Mapping[str, Any], name: str) -> tf.Tensor:
    """Return a tensor of the model by name; raise ModelError if there is none."""
    if name not in net:
        raise ModelError(f"the model has no tensor {name!r}; it has: {', '.join(net)}")
    return tf.convert_to_tensor(net[name])


def _ratio(part: float, whole: float, *, otherwise: float = math.nan) -> float:
    return part / whole if whole else otherwise


class InferenceRunner(Callback):
    """Runs inference over a dataset and records the results of the inferencers.

        InferenceRunner("vld", [ScalarStats("loss"), ClassificationError()]).every(steps=100)

    The model runs over all batches in one compiled call on the first tower. Each example counts once, even in a smaller
    last batch. Before the first step, inference is tested on two batches without side effects.

    Args:
        dataset: the name of one of the model's datasets, or a dataset with the same structure.
        inferencers: the inferencers that compute the scalars.
        batches: the number of batches to use; 0 for all.
        prefix: prefix of the scalars' names. Defaults to the dataset's name, or to "inference" for a dataset object.

    Raises:
        CallbackError: there are no inferencers; at setup, if `batches` is not a non-negative integer, or the trainer
            has no model.
        DataError: at setup, if the dataset is missing, or is infinite and `batches` is 0.
    """

    chief_only = False

    def __init__(
        self,
        dataset: str | tf.data.Dataset,
        inferencers: Inferencer | Sequence[Inferencer],
        *,
        batches: int = 0,
        prefix: str | None = None,
    ) -> None:
        self.dataset = dataset
        self.inferencers = [inferencers] if isinstance(inferencers, Inferencer) else list(inferencers)
        if not self.inferencers or not all(isinstance(one, Inferencer) for one in self.inferencers):
            raise CallbackError(f"InferenceRunner takes inferencers such as ScalarStats('loss'), not {inferencers!r}")
        self.batches = batches
        name = dataset if isinstance(dataset, str) else _UNNAMED
        self.prefix = name if prefix is None else prefix

    def setup(self) -> None:
        trainer: Any = self.trainer
        if not hasattr(trainer, "built"):
            raise CallbackError(f"InferenceRunner needs a trainer of a model; {type(trainer).__name__} has none")
        dataset = _named_dataset(self, self.dataset, self.batches)
        self._pass = CompiledPass(dataset, self._sums, [tf.float64] * len(self.inferencers), trainer.built.layers)

    def check_run(self) -> None:
        # Outside of `evaluating`, since this is not an evaluation for other callbacks.
        with announcing(f"testing the inference on {self.prefix!r}", self.trainer.log), self._explaining():
            self._pass.rehearse(self.prefix, self.trainer.stop, self.batches)

    def trigger(self) -> None:
        stop = self.trainer.stop
        for inferencer in self.inferencers:
            inferencer.reset()
        with self._explaining(), self.trainer.evaluating():
            found = self._pass.run(stop, self.batches)
        stop.check()
        batches, sums = found or (0, [])
        if not batches:
            raise DataError(f"InferenceRunner: the dataset {self.dataset!r} is empty")
        for inferencer, vector in zip(self.inferencers, sums, strict=True):
            self.trainer.monitors.put_scalars(inferencer.result(vector.numpy().tolist()), self.prefix)

    def _sums(self, inputs: dict[str, Any]) -> list[tf.Tensor]:
        """Return a vector of sums for each inferencer and one batch. This method is traced."""
        net = self.trainer.build(inputs, False)
        examples, agree = counted_examples(inputs)
        size = tf.where(agree, tf.cast(examples, tf.float64), 1.0)
        batch = {name: value for name, value in inputs.items() if name != LOSS_WEIGHT}  # only the model may provide it
        found = []
        for inferencer in self.inferencers:
            sums = [tf.cast(value, tf.float64) for value in inferencer.sums({**batch, **net}, size)]
            found.append(tf.stack(sums) if sums else tf.zeros([0], tf.float64))
        return found

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            step = self.trainer.global_step
            raise StepError(f"InferenceRunner on {self.prefix!r} failed at step {step}: {cause(error)}") from error


class ExponentialMovingAverage(Callback):
    """Maintains moving averages of the trained weights and evaluates the model with them.

        ExponentialMovingAverage(0.999)

    After each step, ``average += (1 - decay) * (weight - average)``, within the compiled call. `Validation`,
    `InferenceRunner` and code inside `applied` use the averages. Training is not affected. Every checkpoint holds the
    averages as ``callbacks/ExponentialMovingAverage/<name>``; read them with `averaged_weights`.

    Args:
        decay: the decay of the averages, between 0 and 1.

    Raises:
        CallbackError: `decay` is out of range; at setup, if there are no trainable variables.
    """

    chief_only = False

    def __init__(self, decay: float) -> None:
        if not 0 < decay < 1:
            raise CallbackError(f"ExponentialMovingAverage: decay must be between 0 and 1, got {decay!r}")
        self.decay = decay

    def setup(self) -> None:
        state = self.trainer.state
        trained = self.trainer.trained_variables.items()
        self._weights = {name: weight for name, weight in trained if tf.as_dtype(weight.dtype).is_floating}
        if not self._weights:
            raise CallbackError(f"ExponentialMovingAverage: {type(self.trainer).__name__} has no trainable variables")
        # Tracked by name, since a resumed run may train weights that the checkpoint has no averages of.
        self._begun = {name for name in self._weights if AVERAGES + name in state}
        for name, weight in self._weights.items():
            state.setdefault(AVERAGES + name, tf.Variable(tf.convert_to_tensor(weight), trainable=False))
        self._pairs = [(weight, state[AVERAGES + name]) for name, weight in self._weights.items()]
        self.trainer.evaluation_scopes.append(self.applied)

    def before_train(self) -> None:
        for name, (weight, average) in zip(self._weights, self._pairs, strict=True):
            if name not in self._begun:
                average.assign(weight)
        self._begun.update(self._weights)

    def after_run(self, outputs: dict[str, Any]) -> None:
        for weight, average in self._pairs:
            average.assign_sub((1 - self.decay) * (average - tf.convert_to_tensor(weight)))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context manager that replaces the weights by the averages."""
        with preserve_values(weight for weight, _ in self._pairs):
            for weight, average in self._pairs:
                weight.assign(average)
            yield

    def state_dict(self) -> dict[str, Any]:
        return {"names": list(self._weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begun.update(state["names"])
