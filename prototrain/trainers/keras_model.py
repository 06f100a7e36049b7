"""A compiled Keras model as the protocol of models wants it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from prototrain.checkpoint.random import global_seed, random_state, set_random_state
from prototrain.config import Config
from prototrain.config.json_form import encode
from prototrain.data.batches import batch_size
from prototrain.errors import ModelError
from prototrain.experiment import source_of
from prototrain.gradient_processors import summed
from prototrain.model.keras_hooks import calling, present_call
from prototrain.model.layer_cache import MissingVariableError
from prototrain.model.net import LOSS_WEIGHT
from prototrain.private_api.of_keras import mask_of
from prototrain.step.nonfinite import Update
from prototrain.step.trace import TowerTrace
from prototrain.trainers.keras_data import Element, named
from prototrain.trainers.optimization import optimizer_config

_MEANS = ("sum_over_batch_size", "mean")  # reductions of which those of equal parts can be averaged


class CompiledModel:
    """A compiled Keras model, as the protocol of models wants it.

    Args:
        model: compiled.
        datasets: functions that make the datasets, as `fit` would take them, by name.
        config: keys of the user's.

    Attributes:
        has_own_step: whether an iteration is the model's own `train_step`, rather than the one of Keras.
        compiled_with: what `compile` was given, as JSON can hold it.
        logged: the names of what the model's `train_step`, or else its `compute_metrics`, returns.
    """

    def __init__(
        self, model: keras.Model, datasets: Mapping[str, Callable[[], tf.data.Dataset]], config: Mapping[str, Any]
    ) -> None:
        self._model = model
        self._make = dict(datasets)
        self._random: dict[str, Any] | None = random_state()
        self._elements: dict[str, Element] = {}
        self.has_own_step = has_own_step(model)
        self.name = model.name
        self.source = None if type(model).__module__.startswith("keras.") else source_of(model)
        self.compiled_with = _settings(model)
        self.logged: tuple[str, ...] = ()
        seed = global_seed()
        self.config = Config(
            {
                "trainer.experiment_name": model.name,
                "trainer.validation_batches": 0,
                "model.jit_compile": bool(model.jit_compile),
                **({} if seed is None else {"trainer.random_seed": seed}),
                **config,
            }
        )
        # Until a batch was read; nothing may be read before, since that would move the order of a shuffled dataset on.
        self.config["model.batch_size"] = self.config["model.accumulate_steps"]
        if model.dtype_policy.name.startswith("mixed_") and not self.has_own_step:
            self.config["model.mixed_precision"] = model.dtype_policy.name

    def datasets(self) -> dict[str, tf.data.Dataset]:
        found = {}
        for name, make in self._make.items():
            dataset = make()
            self._elements[name] = element = Element(dataset.element_spec)
            found[name] = dataset.map(element.named)
        return found

    def build(self, inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        is_first = self._random is not None
        if self._random is not None:
            # Layers that are made only now draw their initial weights as they would in `fit`.
            set_random_state(self._random)
            self._random = None
        if train_phase and self.has_own_step:
            net = self._own_step(inputs)
            if is_first and _unbuilt(self._model):
                self._trace_branches(inputs)
            return net
        x, y, sample_weight = self._element_of(inputs).unpacked(inputs)
        model = self._model
        y_pred = model(x, training=train_phase)
        net = named("y_pred", y_pred)
        if y is None and self._elements["trn"].has_labels:
            return net
        more = {"training": train_phase} if "training" in inspect.signature(model.compute_loss).parameters else {}
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **more)
        if train_phase:
            # With micro-batches it is told of the loss of all of them, see `take_loss`.
            self._track(loss, batch_size(inputs) if self.config["model.accumulate_steps"] == 1 else 0)
            net.update(self._loss_weight(y, y_pred))
            net.update(self._logs("compute_metrics", model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)))
        return {**net, "loss": loss}

    def take_loss(self, outputs: dict[str, tf.Tensor], inputs: dict[str, Any]) -> None:
        """Take note of a step of several micro-batches: update Keras's own "loss", and read all metrics; traced."""
        self._track(outputs["loss"], batch_size(inputs))
        for name, value in flat(self._model.get_metrics_result()):
            if name in outputs and name != "loss":
                outputs[name] = tf.convert_to_tensor(value)

    def _track(self, loss: tf.Tensor, weight: Any) -> None:
        for metric in self._model.metrics:
            if metric.name == "loss":  # Keras's own, which its `train_step` would keep
                metric.update_state(loss, sample_weight=weight)

    def _loss_weight(self, y: Any, y_pred: Any) -> dict[str, tf.Tensor]:
        """What the loss of a micro-batch is a mean over, if it has a mask; else Keras divides by the examples.

        Raises:
            ModelError: micro-batches cannot give what the whole batch gives.
        """
        model = self._model
        if self.config["model.accumulate_steps"] == 1 or not hasattr(model, "loss"):
            return {}
        losses = keras.tree.flatten(model.loss)
        odd = [one for one in losses if isinstance(one, keras.losses.Loss) and one.reduction not in _MEANS]
        if odd:
            raise ModelError(
                f"model.accumulate_steps: {odd[0].name} has the reduction {odd[0].reduction!r}, which micro-batches "
                "do not add up to; give it 'sum_over_batch_size'"
            )
        masks = [mask_of(one) for one in keras.tree.flatten(y_pred)]
        if len(masks) == 1 and isinstance(model.loss, keras.losses.Loss):
            given = [keras.ops.convert_to_tensor(one, dtype=model.loss.dtype) for one in (y, y_pred)]
            masks.append(mask_of(model.loss.call(*given)))  # such as that of ignore_class
        masks = [tf.cast(mask, tf.bool) for mask in masks if mask is not None]
        if masks and keras.tree.is_nested(y_pred):
            raise ModelError("model.accumulate_steps: a model of several outputs with masks takes no micro-batches")
        return {LOSS_WEIGHT: tf.math.count_nonzero(functools.reduce(tf.logical_and, masks))} if masks else {}

    def _trace_branches(self, inputs: dict[str, Any]) -> None:
        """Let optimizers be built that are used in a branch (`tf.cond`) which the first step has not taken: tracing
        meets all branches, as in `fit`."""
        call = present_call()
        with nullcontext() if call is None else call.ignoring():  # or it would be given what that step has made
            as_given = self._elements["trn"].as_given
            step = tf.function(lambda batch: self._model.train_step(as_given(batch)), autograph=False)
            step.get_concrete_function(inputs)

    def as_given(self, dataset: str) -> Callable[[dict[str, Any]], Any]:
        """From a batch of a dataset, as a dict, to what the user's own gives."""
        return self._elements[dataset].as_given

    def _element_of(self, inputs: Mapping[str, Any]) -> Element:
        like = [element for element in self._elements.values() if set(element.names) == inputs.keys()]
        return like[0] if like else self._elements["trn"]

    def _own_step(self, inputs: dict[str, Any]) -> dict[str, Any]:
        late = {optimizer.name for _, optimizer in named_optimizers(self._model) if not optimizer.built}
        try:
            with calling(self._model):
                logs = self._model.train_step(self._elements["trn"].as_given(inputs))
        except MissingVariableError as error:
            name = next((part for part in error.variable.split("/") if part in late), None)
            if name is None:
                raise
            raise ModelError(
                f"{self.name}.train_step uses its optimizer {name!r} for the first time in a branch that the first "
                "step does not take; build it before, such as in the model's build(), with the variables that it "
                "updates: self.optimizer.build(self.trainable_variables)"
            ) from None
        if not isinstance(logs, Mapping):
            raise ModelError(f"{self.name}.train_step must return a dict of scalars, not {type(logs).__name__}")
        return {name: tf.reshape(value, []) for name, value in self._logs("train_step", logs).items()}

    def _logs(self, method: str, logs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """What a method returned for the logs, without metrics of several numbers: `KerasTrainer._fit_logs` asks these
        for their number of each class.

        Raises:
            ModelError: something else has several numbers.
        """
        found = {name: tf.convert_to_tensor(value) for name, value in flat(logs) if value is not None}
        self.logged = tuple(found)
        several = {name: value.shape for name, value in found.items() if value.shape.num_elements() not in (1, None)}
        metrics = dict(flat(self._model.get_metrics_result())) if several else {}
        for name, shape in several.items():
            if name not in metrics:
                raise ModelError(f"{self.name}.{method} must return scalars; {name!r} has shape {shape}")
        return {name: value for name, value in found.items() if name not in several}


def flat(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values as `fit` reports them: metrics of `compile` come in a dict of their own."""
    for name, value in logs.items():
        yield from flat(value) if isinstance(value, Mapping) else [(name, value)]


def has_own_step(model: keras.Model) -> bool:
    """Whether an iteration has to be the model's `train_step` itself: it is not Keras's, or scales the loss."""
    optimizer = model.optimizer
    if getattr(model.train_step, "__func__", None) is not keras.Model.train_step:
        return True
    if optimizer is None or type(optimizer) is keras.optimizers.LossScaleOptimizer:
        return False
    stock = getattr(optimizer.scale_loss, "__func__", None) is keras.optimizers.Optimizer.scale_loss
    return not stock or optimizer.loss_scale_factor is not None


def check(model: Any) -> None:
    """Check that a model can be trained.

    Raises:
        ModelError: it is no Keras model, not compiled, or made for several devices.
    """
    if not isinstance(model, keras.Model):
        raise ModelError(f"KerasTrainer takes a keras.Model, not {type(model).__name__}")
    if not model.compiled or (model.optimizer is None and not has_own_step(model)):
        raise ModelError(f"{model.name} has no optimizer: call its compile(optimizer=..., loss=...) first")
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ModelError(f"{model.name} was made for several devices; KerasTrainer has one")


def optimizers_of(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """The built optimizers that a model has, each once, by its attributes' names; "optimizer" is that of `compile`.

    One in a list or a dict is called after it and its place there, such as ``optimizers/0``.
    """
    found: dict[str, keras.optimizers.Optimizer] = {}
    for name, optimizer in named_optimizers(model):
        if optimizer.built and not any(optimizer is other for other in found.values()):
            found[name] = optimizer
    return found


def named_optimizers(model: keras.Model) -> list[tuple[str, keras.optimizers.Optimizer]]:
    """All names under which a model has optimizers, in containers of Keras's own too: what users call them first."""
    attributes = {attribute.lstrip("_"): value for attribute, value in vars(model).items()}
    inside: dict[str, Any] = {}
    for name, value in attributes.items():
        is_list, is_dict = isinstance(value, list | tuple), isinstance(value, dict)
        pairs = enumerate(value) if is_list else value.items() if is_dict else ()
        inside |= {f"{name}/{key}": item for key, item in pairs}
    found = sorted(attributes.items(), key=lambda item: item[0] != "optimizer") + list(inside.items())
    return [(name, item) for name, item in found if isinstance(item, keras.optimizers.Optimizer)]


def _unbuilt(model: keras.Model) -> bool:
    """Whether a model has an optimizer that is not built; that of `compile` counts only if it is the only one."""
    optimizers = {id(optimizer): optimizer for _, optimizer in named_optimizers(model)}
    is_only = len(optimizers) == 1
    return any(not each.built and (is_only or each is not model.optimizer) for each in optimizers.values())


@contextmanager
def guarded(optimizers: Mapping[str, keras.optimizers.Optimizer], trace: TowerTrace) -> Iterator[None]:
    """Let what optimizers are told to do meanwhile, in the model's `train_step`, go through a step's guard; traced."""
    # One that scales the loss knows what to do after an overflow.
    scaling = keras.optimizers.LossScaleOptimizer
    distinct = list({id(found): found for found in optimizers.values() if not isinstance(found, scaling)}.values())
    for optimizer in distinct:
        optimizer.apply = _Guarded(optimizer, trace)
    try:
        yield
    finally:
        for optimizer in distinct:
            del optimizer.apply


class _Guarded:
    """In place of an optimizer's `apply`."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, trace: TowerTrace) -> None:
        self._optimizer, self._apply, self._trace = optimizer, optimizer.apply, trace

    def __call__(self, grads: Any, trainable_variables: Any = None) -> None:
        gradients = [summed(gradient) for gradient in grads]
        variables = None if trainable_variables is None else list(trainable_variables)
        there = [tf.cast(gradient, tf.float32) for gradient in gradients if gradient is not None]
        applying = _Applying(self._optimizer.learning_rate, lambda: self._apply(gradients, variables))
        norm = tf.linalg.global_norm(there) if there else tf.constant(0.0)
        self._trace.guard.apply(self._trace, Update(applying, there, there, norm))


class _Applying:
    """An optimizer as a guard takes it, whose gradients are known."""

    def __init__(self, learning_rate: Any, make: Callable[[], None]) -> None:
        self.learning_rate, self._make = learning_rate, make

    def apply_gradients(self, gradients_and_variables: Any) -> None:
        """Apply them."""
        self._make()


def _settings(model: keras.Model) -> dict[str, Any]:
    """What `compile` was given, as JSON can hold it; without the learning rate, which every checkpoint holds."""
    given = {"loss": model.loss} if hasattr(model, "loss") else {}
    found = {name: encode(value, name, []) for name, value in given.items()}
    if model.optimizer is not None:
        config = {name: value for name, value in optimizer_config(model.optimizer).items() if name != "learning_rate"}
        found = {"optimizer": encode(config, "optimizer", []), **found}
    return found
