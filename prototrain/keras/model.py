"""Adapter from a compiled Keras model to a model for tower trainers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from prototrain.checkpoint.values import random_state, set_random_state
from prototrain.config import Config
from prototrain.data.batches import batch_size
from prototrain.errors import ConfigError, ModelError
from prototrain.experiment import source_of
from prototrain.gradient_processors import summed
from prototrain.keras.data import Element, leaves_by_path
from prototrain.model.build_call import calling, present_call
from prototrain.optimizers import updates_all_rows
from prototrain.step.nonfinite import Update
from prototrain.step.trace import TowerTrace
from prototrain.tf_private import keras_seed
from prototrain.trainers.optimization import scales_loss

# Keys that compile() and the data determine, and keys that a custom train_step ignores.
_OF_COMPILE = ("model.batch_size", "model.lr_schedule", "model.mixed_precision", "model.optimizer")
_OF_ENGINE = ("model.clip_gradients", "model.trainable_variables", "model.weight_decay")


class CompiledModel:
    """Adapts a compiled Keras model to the interface of a prototrain model.

    `datasets` has functions that return the datasets in the form that `fit` takes, by name.

    Attributes:
        has_own_train_step: whether a step calls the model's `train_step` instead of the trainer's step.
        logged: the names that `train_step` or `compute_metrics` has returned.

    Raises:
        ConfigError: a key has no effect because `compile`, the data or `train_step` determines its value, or
            `model.accumulate_steps` is greater than 1.
    """

    def __init__(
        self, model: keras.Model, datasets: Mapping[str, Callable[[], tf.data.Dataset]], config: Mapping[str, Any]
    ) -> None:
        self.has_own_train_step = _has_own_train_step(model)
        if unused := [key for key in config if key.startswith(_OF_COMPILE + _OF_ENGINE * self.has_own_train_step)]:
            instead = "set it in compile(), in the data or in train_step"
            raise ConfigError(f"{unused[0]} has no effect in a KerasTrainer of {model.name}; {instead}")
        self.name = model.name
        self.source = None if type(model).__module__.startswith("keras.") else source_of(model)
        self.logged: tuple[str, ...] = ()
        self._model = model
        self._make = datasets
        self._random: dict[str, Any] | None = random_state()
        self._elements: dict[str, Element] = {}
        defaults = {
            "trainer.experiment_name": model.name,
            "trainer.validation_batches": 0,
            "model.jit_compile": bool(model.jit_compile) and not self.has_own_train_step,
            "model.batch_size": 1,  # until a batch is read
        }
        if (seed := keras_seed()) is not None:
            defaults["trainer.random_seed"] = seed
        self.config = Config({**defaults, **config})
        for key in defaults.keys() - config.keys():
            self.config[key]  # as read, so that no warning names a key that the user has not set
        if self.config["model.accumulate_steps"] > 1:
            instead = "give the optimizer gradient_accumulation_steps"
            raise ConfigError(f"model.accumulate_steps: a KerasTrainer does not divide batches; {instead}")
        if model.dtype_policy.name.startswith("mixed_") and not self.has_own_train_step:
            self.config["model.mixed_precision"] = model.dtype_policy.name

    def datasets(self) -> dict[str, tf.data.Dataset]:
        found = {name: make() for name, make in self._make.items()}
        self._elements = {name: Element(dataset.element_spec) for name, dataset in found.items()}
        return {name: dataset.map(self._elements[name].named) for name, dataset in found.items()}

    def as_given(self, dataset: str) -> Callable[[dict[str, Any]], Any]:
        """Return a function that restores the user's structure of a batch from its dict."""
        return self._elements[dataset].as_given

    def build(self, inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        if self._random is not None:
            # Layers that are built here get the same initial weights as in `fit`.
            set_random_state(self._random)
            self._random = None
        if (call := present_call()) is not None:
            call.updates_metrics = True
        model, trn = self._model, self._elements["trn"]
        if train_phase and self.has_own_train_step:
            return self._own_step(inputs)
        alike = (element for element in self._elements.values() if set(element.names) == inputs.keys())
        x, y, sample_weight = next(alike, trn).unpacked(inputs)
        y_pred = model(x, training=train_phase)
        net = leaves_by_path("y_pred", y_pred)
        if y is None and any(name.split("/")[0] == "y" for name in trn.names):
            return net
        more = {"training": train_phase} if "training" in inspect.signature(model.compute_loss).parameters else {}
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **more)
        if train_phase:
            for metric in model.metrics:
                if metric.name == "loss":  # Keras updates its loss metric in train_step
                    metric.update_state(loss, sample_weight=batch_size(inputs))
            net.update(self._logs("compute_metrics", model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)))
        return {**net, "loss": loss}

    def _own_step(self, inputs: dict[str, Any]) -> dict[str, Any]:
        with calling(self._model):
            logs = self._model.train_step(self._elements["trn"].as_given(inputs))
        if not isinstance(logs, Mapping):
            raise ModelError(f"{self.name}.train_step must return a dict of scalars, not {type(logs).__name__}")
        return {name: tf.reshape(value, []) for name, value in self._logs("train_step", logs).items()}

    def _logs(self, method: str, logs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Return the scalars that a method returned, without metrics that have several values."""
        found = {name: tf.convert_to_tensor(value) for name, value in flat(logs) if value is not None}
        self.logged = tuple(found)
        several = {name: value.shape for name, value in found.items() if value.shape.num_elements() not in (1, None)}
        metrics = dict(flat(self._model.get_metrics_result())) if several else {}
        for name, shape in several.items():
            if name not in metrics:
                raise ModelError(f"{self.name}.{method} must return scalars; {name!r} has shape {shape}")
        return {name: value for name, value in found.items() if name not in several}


def flat(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of logs, including those in the nested dicts of compiled metrics."""
    for name, value in logs.items():
        yield from flat(value) if isinstance(value, Mapping) else [(name, value)]


def check_model(model: Any) -> None:
    """Raise ModelError unless `model` is a Keras model that is compiled for one device."""
    if not isinstance(model, keras.Model):
        raise ModelError(f"KerasTrainer takes a keras.Model, not {type(model).__name__}")
    if not model.compiled or (model.optimizer is None and not _has_own_train_step(model)):
        raise ModelError(f"{model.name} has no optimizer: call its compile(optimizer=..., loss=...) first")
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ModelError(f"{model.name} was made for several devices; KerasTrainer has one")


def _has_own_train_step(model: keras.Model) -> bool:
    """Return whether the model overrides `train_step`, or its optimizer scales the loss there."""
    optimizer = model.optimizer
    if not inherits(model, "train_step"):
        return True
    if optimizer is None or type(optimizer) is keras.optimizers.LossScaleOptimizer:  # the trainer scales the loss
        return False
    return scales_loss(optimizer)


def inherits(model: keras.Model, method: str) -> bool:
    """Return whether a model inherits a method from `keras.Model` unchanged."""
    return getattr(getattr(model, method), "__func__", None) is getattr(keras.Model, method)


def optimizers_of(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """Return the built optimizers of a model, each under one name.

    The optimizer of `compile` is named "optimizer". Others are named after their attributes; those in a list or dict
    have names such as ``optimizers/0``.
    """
    named: dict[str, Any] = {"optimizer": getattr(model, "optimizer", None)}
    named |= {attribute.lstrip("_"): value for attribute, value in vars(model).items()}
    for name, value in list(named.items()):  # last, because Keras also keeps optimizers in dicts
        pairs = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
        )
        named |= {f"{name}/{key}": item for key, item in pairs}
    found: dict[str, keras.optimizers.Optimizer] = {}
    for name, one in named.items():
        is_optimizer = isinstance(one, keras.optimizers.Optimizer)
        if is_optimizer and one.built and not any(one is other for other in found.values()):
            found[name] = one
    return found


@contextmanager
def guarded(optimizers: Iterable[keras.optimizers.Optimizer], trace: TowerTrace) -> Iterator[None]:
    """Context manager that checks the updates of a custom `train_step` for non-finite values; traced."""
    # A LossScaleOptimizer handles an overflow itself.
    checked = [one for one in optimizers if not isinstance(one, keras.optimizers.LossScaleOptimizer)]
    for optimizer in checked:
        optimizer.apply = partial(_apply, trace, optimizer, optimizer.apply)
    try:
        yield
    finally:
        for optimizer in checked:
            del optimizer.apply


def _apply(trace: TowerTrace, optimizer: Any, apply: Any, grads: Any, trainable_variables: Any = None) -> None:
    dense = updates_all_rows(optimizer)
    gradients = [summed(gradient, dense=dense) for gradient in grads]
    variables = None if trainable_variables is None else list(trainable_variables)
    update: Any = SimpleNamespace(
        learning_rate=optimizer.learning_rate, apply_gradients=lambda pairs: apply(gradients, variables)
    )
    known = [tf.cast(gradient, tf.float32) for gradient in gradients if gradient is not None]
    norm = tf.linalg.global_norm(known) if known else tf.constant(0.0)
    trace.guard.apply(trace, Update(update, known, known, norm))
