"""Adapter from a `model_fn` and an `input_fn` to a model for prototrain's trainers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from prototrain.config import Config
from prototrain.errors import DataError, ModelError
from prototrain.estimator import export
from prototrain.estimator.hooks import find_tensors, given_tensors
from prototrain.estimator.specs import EstimatorSpec, ModeKeys, OptimizerSpec
from prototrain.keras.data import leaves_by_path
from prototrain.model.build_call import present_call
from prototrain.step.trace import tower_trace

_GUIDE = 'see "Names of tf.estimator" in the documentation'


@dataclass(eq=False)
class Program:
    """A prototrain model that calls a `model_fn` in one mode.

    Attributes:
        call: the `model_fn`, which takes features, labels and mode by name.
        read: returns the dataset.
        features_of: a function from a batch to the features, for data that does not come from an `input_fn`.
        spec: the result of the first call.
        printed_names: names of tensors of the training step that hooks print.
        signatures: for each signature of an export, a dict from the outputs' names to their names in the mapping that
            `build` returns.
    """

    call: Callable[..., Any]
    mode: str
    read: Callable[[], Any]
    config: Config
    name: str
    source: Path | None
    features_of: Callable[[dict[str, Any]], Any] | None = None
    spec: EstimatorSpec = field(init=False)
    printed_names: set[str] = field(init=False, default_factory=set)
    signatures: dict[str, dict[str, str]] = field(init=False, default_factory=dict)
    _like: tuple[Any, Any] = field(init=False, default=(None, None))

    def datasets(self) -> dict[str, tf.data.Dataset]:
        """Return the dataset under the name "trn".

        Elements are dicts of tensors named "features" or "features/<name>", and "labels" or "labels/<name>".
        """
        dataset = self.read()
        if self.features_of is not None:
            return {"trn": dataset}
        if not isinstance(dataset, tf.data.Dataset):
            raise DataError(f"input_fn must return a tf.data.Dataset, not {type(dataset).__name__}; {_GUIDE}")
        if int(dataset.cardinality()) == 0:
            raise DataError("the dataset of input_fn is empty")
        self._like = self._parts(dataset.element_spec)
        is_tuple = isinstance(dataset.element_spec, tuple)

        def by_name(*element: Any) -> dict[str, Any]:
            found = _by_name(self._parts(element if is_tuple else element[0]))
            return {name: tensor for name, tensor in found.items() if tensor is not None}

        return {"trn": dataset.map(by_name)}

    def build(self, inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        """Call the `model_fn` and return its tensors by name, including the scalars to report."""
        if self.features_of is not None:
            features, labels = self.features_of(inputs), None
        else:
            leaves = [inputs.get(name) for name in _by_name(self._like)]
            features, labels = keras.tree.pack_sequence_as(self._like, leaves)
        trace, call = tower_trace(), present_call()
        if call is not None:
            # In training, metrics are updated in watched steps only, as `tf.summary` is.
            call.updates_metrics = self.mode != ModeKeys.TRAIN or trace is None or trace.is_watched
        spec = checked(self.call(features=features, labels=labels, mode=self.mode), self.mode)
        if not hasattr(self, "spec"):
            self.spec = spec
        predictions = export.named(spec.predictions)
        if self.mode == ModeKeys.PREDICT:
            return predictions if self.features_of is None else self._exported(spec)
        net = {name: metric for name, metric in spec.eval_metric_ops.items() if tf.is_tensor(metric)}
        if self.mode == ModeKeys.TRAIN:
            # Scalars are recorded as scalars of the step: only those that a hook prints.
            shown = {
                name: one
                for name, one in predictions.items()
                if name in self.printed_names or not tf.is_tensor(one) or one.shape.rank != 0
            }
            net = {**shown, **given_tensors(spec.training_hooks), **net}
            net = {**find_tensors(self.printed_names - net.keys() - {"loss"}), **net}
        if spec.loss_weight is not None:
            net["loss_weight"] = spec.loss_weight
        net.pop("loss", None)
        return {"loss": spec.loss, **net}

    def _exported(self, spec: EstimatorSpec) -> dict[str, Any]:
        """Return the outputs of all signatures, named ``<signature>:<name>``."""
        found = export.signatures(spec.export_outputs, spec.predictions)
        self.signatures = {name: {key: f"{name}:{key}" for key in outputs} for name, outputs in found.items()}
        return {f"{name}:{key}": value for name, outputs in found.items() for key, value in outputs.items()}

    @property
    def metrics(self) -> dict[str, keras.metrics.Metric]:
        """The metrics of the first call by name; the metrics of later calls share their variables."""
        found = self.spec.eval_metric_ops.items()
        return {name: metric for name, metric in found if isinstance(metric, keras.metrics.Metric)}

    def _parts(self, element: Any) -> tuple[Any, Any]:
        """Return features and labels; labels are None in the mode PREDICT."""
        if not isinstance(element, tuple):
            return element, None
        if self.mode == ModeKeys.PREDICT:
            return element[0], None
        if len(element) != 2:
            raise DataError(f"the dataset of input_fn must give (features, labels), not a tuple of {len(element)}")
        return element[0], element[1]


def _by_name(parts: tuple[Any, Any]) -> dict[str, Any]:
    """Return the leaves of features and labels by path, such as "features/width", including None."""
    return leaves_by_path("features", parts[0]) | leaves_by_path("labels", parts[1])


def taking_named(function: Callable[..., Any], what: str, **available: Any) -> Callable[..., Any]:
    """Return a user function as one of keyword arguments, which passes on those that the signature names.

    The caller may override the available arguments. `what` is the name of the function in messages.
    """
    if not callable(function):
        raise ModelError(f"{what} must be a function, not {type(function).__name__}")
    parameters = inspect.signature(function).parameters.values()
    bound = function.keywords if isinstance(function, partial) else {}  # arguments bound by the user are kept
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in bound]
    odd = [p.name for p in by_name if p.name not in available and p.default is p.empty]
    if odd:
        raise ModelError(f"{what} takes {odd[0]!r}, which is none of {', '.join(available)}")
    names = [p.name for p in by_name if p.name in available]

    def call(**given: Any) -> Any:
        arguments = {**available, **given}
        return function(**{name: arguments[name] for name in names})

    return call


def checked(spec: Any, mode: str) -> EstimatorSpec:
    """Return the checked result of a `model_fn`, with a tuple of `OptimizerSpec`s and a scalar loss."""
    if not isinstance(spec, EstimatorSpec):
        raise ModelError(f"model_fn must return an EstimatorSpec, not {type(spec).__name__}")
    if mode == ModeKeys.PREDICT:
        if not export.named(spec.predictions):
            raise ModelError("model_fn gives no predictions in the mode PREDICT: EstimatorSpec(mode, predictions=...)")
        return spec
    if spec.loss is None:
        raise ModelError(f"model_fn gives no loss in the mode {mode.upper()}: EstimatorSpec(mode, loss=...)")
    spec.loss = tf.convert_to_tensor(spec.loss)
    if spec.loss.shape.num_elements() != 1:
        raise ModelError(f"the loss must be a scalar, not of shape {spec.loss.shape}; take tf.reduce_mean of it")
    spec.loss = tf.reshape(spec.loss, [])
    if mode == ModeKeys.TRAIN:
        given = spec.train_op if isinstance(spec.train_op, list | tuple) else [spec.train_op]
        spec.train_op = tuple(map(_optimizer_spec, given or [None]))
    for name, metric in spec.eval_metric_ops.items():
        if name in ("global_step", "loss", "loss_weight"):
            raise ModelError(f"eval_metric_ops[{name!r}]: give the metric another name; this one is taken")
        if not isinstance(metric, keras.metrics.Metric) and not (tf.is_tensor(metric) and metric.shape.rank == 0):
            raise ModelError(
                f"eval_metric_ops[{name!r}] must be a Keras metric or a scalar tensor, not {type(metric).__name__}: "
                "accuracy = keras.metrics.Accuracy(); accuracy.update_state(labels, predictions)"
            )
    return spec


def _optimizer_spec(train_op: Any) -> OptimizerSpec:
    spec = train_op if isinstance(train_op, OptimizerSpec) else OptimizerSpec(train_op)
    if isinstance(spec.optimizer, keras.optimizers.Optimizer):
        return spec
    kind = "nothing" if spec.optimizer is None else type(spec.optimizer).__name__
    raise ModelError(
        f"train_op must be a Keras optimizer itself, or an OptimizerSpec, not {kind}: "
        "train_op=keras.optimizers.Adagrad(0.1); the engine does what minimize() did"
    )


# In TensorFlow 2, `tf.compat.v1.trainable_variables` and similar functions return empty lists, and a weight decay that
# uses them would silently be 0. All of these functions call `tf.Graph.get_collection`.
_KEYS = tf.compat.v1.GraphKeys
_GONE = (
    *(_KEYS.GLOBAL_STEP, _KEYS.LOSSES, _KEYS.MODEL_VARIABLES, _KEYS.WEIGHTS, _KEYS.BIASES),
    _KEYS.MOVING_AVERAGE_VARIABLES,
)
_get_collection = tf.Graph.get_collection


def _collection(self: tf.Graph, name: str, scope: str | None = None) -> Any:
    """Return a collection of the current `model_fn` call; elsewhere, TensorFlow's collection."""
    call = present_call()
    if call is None:
        return _get_collection(self, name, scope)
    if name in _GONE or (name == _KEYS.REGULARIZATION_LOSSES and scope is not None):
        raise ModelError(f"model_fn asks for TensorFlow 1's collection of {name}, which is gone; {_GUIDE}")
    if name == _KEYS.REGULARIZATION_LOSSES:
        regularized = {id(weight): weight for layer in call.called.values() for weight in layer.trainable_weights}
        losses = call.losses_left(list(regularized.values()))
        call.taken |= {*map(id, call.losses), *regularized}
        return [tf.cast(loss, tf.float32) for loss in losses]
    # tf.custom_gradient requests GLOBAL_VARIABLES.
    if name in (_KEYS.TRAINABLE_VARIABLES, _KEYS.GLOBAL_VARIABLES):
        layers = call.called.values()
        of_layers = {id(weight.value) for layer in layers for weight in layer.weights}
        found = {id(weight.value): weight.value for layer in layers for weight in layer.trainable_weights}
        found |= {id(made): made for made in call.variables if made.trainable and id(made) not in of_layers}
        return [one for one in found.values() if scope is None or re.match(scope, one.name)]
    return _get_collection(self, name, scope)


tf.Graph.get_collection = _collection
