"""The optimizers of a trainer: their variables, learning rates, checks and recorded facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from prototrain.callbacks.group import CallbackGroup
from prototrain.callbacks.hyperparameters import HyperParamSetter, LearningRate
from prototrain.config import Config
from prototrain.errors import CheckpointError, ConfigError
from prototrain.optimizers import named_slots
from prototrain.system.terminal import FRESH
from prototrain.system.tracebacks import cause
from prototrain.tf_private import copy_decay_exclusions, learning_rate_source

UNSET_RATE = 0.0
"""The learning rate that stands for "not set yet": the config has none, and a callback must set it."""


def describe_optimizer(config: Config, optimizer: Any) -> str:
    """Describe an optimizer: its class, its initial learning rate and its schedule."""
    schedule = config.get("model.lr_schedule.method")
    is_unset = schedule is None and rate(optimizer) == UNSET_RATE
    words = "set by a callback" if is_unset else f"{rate(optimizer):.6g}"
    follows = f", schedule {schedule}" if schedule not in (None, "constant") else ""
    return f"{type(optimizer).__name__}, learning rate {words}{follows}"


def check_rate(config: Config, optimizer: Any, callbacks: CallbackGroup, *, is_used: bool) -> str | None:
    """Return a warning if the config has a schedule that no callback follows, after the callbacks' setup.

    `is_used` says whether the step is known to update with the optimizer.

    Raises:
        ConfigError: neither the config nor a callback sets a learning rate, or it would be 0 in all steps.
    """
    if optimizer is None or any(one.optimizer is optimizer for one in callbacks.of_class(LearningRate)):
        return None
    schedule, method = config.get("model.lr_schedule.method"), config.get("model.optimizer.method")
    if schedule is None:
        if isinstance(method, str) and rate(optimizer) == UNSET_RATE:
            raise ConfigError(
                f"model.lr_schedule.method is not set; the optimizer {method!r} needs a learning rate, from the config "
                "or from a callback such as LearningRate or ScheduledHyperParamSetter"
            )
        return None
    is_constant = schedule == "constant" and not config["model.lr_schedule.warmup_steps"]
    is_set = any(one.param.is_rate_of(optimizer) for one in callbacks.of_class(HyperParamSetter))
    if is_constant or is_set or learning_rate_source(optimizer) is not None:
        return None
    text = f"no LearningRate is among the callbacks, so model.lr_schedule ({schedule}) is not followed"
    cure = "add LearningRate(schedules.from_config(config))"
    may_set = any(one.overrides("before_run") or one.overrides("before_epoch") for one in callbacks)
    if rate(optimizer) == 0.0 and is_used and not may_set:  # of a warmup
        raise ConfigError(f"{text} and the learning rate would stay at 0; {cure}")
    return f"WARNING: {text}: the learning rate stays at {rate(optimizer):.6g} unless another callback sets it; {cure}"


def recreate_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Create an optimizer with the same arguments as another one."""
    try:
        equal = type(optimizer).from_config(optimizer.get_config())
    except NotImplementedError as error:
        raise ConfigError(f"{type(optimizer).__name__} cannot be made a second time: {cause(error)}") from error
    copy_decay_exclusions(optimizer, equal)  # not part of the config
    return equal


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Raise a ConfigError if an optimizer has an argument that only Keras's `fit` supports."""
    if scales_loss(optimizer) or optimizer.use_ema:
        raise ConfigError(
            f"{type(optimizer).__name__}: a loss scale and use_ema have an effect in Keras's fit only; set "
            "model.mixed_precision: mixed_float16 for a loss scale, or add the callback ExponentialMovingAverage"
        )


def scales_loss(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether an optimizer scales the loss in Keras's `fit`."""
    inherited = getattr(optimizer.scale_loss, "__func__", None) is keras.optimizers.Optimizer.scale_loss
    return not inherited or optimizer.loss_scale_factor is not None


def decay_losses(config: Config, variables: Iterable[Any]) -> dict[str, tf.Tensor]:
    """Compute the weight decay losses "loss_l2" and "loss_l1" of ``model.weight_decay``. Traced."""
    decayed, l2, l1 = list(variables), config["model.weight_decay.value"], config["model.weight_decay.l1"]
    found = {}
    if decayed and l2:
        found["loss_l2"] = l2 * tf.add_n([tf.cast(tf.nn.l2_loss(variable), tf.float32) for variable in decayed])
    if decayed and l1:
        sums = [tf.cast(tf.reduce_sum(tf.abs(variable)), tf.float32) for variable in decayed]
        found["loss_l1"] = l1 * tf.add_n(sums)
    return found


def rate(optimizer: keras.optimizers.Optimizer) -> float:
    """Return the current learning rate."""
    return float(tf.convert_to_tensor(optimizer.learning_rate))  # `float` does not accept a replicated variable


class RegisteredOptimizers:
    """The optimizers whose variables are in the state of a `TowerTrainer`."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._optimizers: dict[str, keras.optimizers.Optimizer] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return the class of each optimizer, and the initial learning rate unless it is a schedule or one sets it."""
        follows = bool(self._trainer.callbacks.of_class(LearningRate))
        return {name: {"class": one["class"]} if follows else dict(one) for name, one in self._facts.items()}

    def register(
        self, name: str, optimizer: keras.optimizers.Optimizer, variables: Iterable[tf.Variable] | None = None
    ) -> None:
        """Add the variables of an optimizer to the state; see `TowerTrainer.register_optimizer`."""
        trainer = self._trainer
        trainer._check_optimizer(optimizer)
        if trainer.towers > 1 and optimizer.gradient_accumulation_steps:
            raise ConfigError(
                f"{optimizer.name}: with several towers an optimizer cannot have gradient_accumulation_steps; use "
                "model.accumulate_steps, which accumulates within a step"
            )
        trained = {} if variables is None else trainer.built.keras_variables(variables)
        if variables is not None:
            with tf.variable_creator_scope(trainer.placement.make_variable):
                optimizer.build(list(trained.values()))
        self._optimizers[name] = optimizer
        self._facts[name] = {"class": type(optimizer).__name__}
        if learning_rate_source(optimizer) is None:
            # Without digits that a float32 does not have.
            self._facts[name]["learning_rate"] = float(f"{rate(optimizer):.7g}")
        for slot, variable in named_slots(optimizer, trained):
            trainer.state[f"{name}/{slot}"] = variable

    @contextmanager
    def around_restore(self, made_with: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
        """Context manager around a restore. A learning rate that was changed since the checkpoint keeps its new value.

        `made_with` are the `facts` of the run that wrote the checkpoint. Raises a `CheckpointError` if it was written
        with another optimizer.
        """
        rates: dict[str, float] = {}
        for optimizer, now in self.facts().items():
            then = made_with.get(optimizer, {})
            if then.get("class", now["class"]) != now["class"]:
                raise CheckpointError(
                    f"the checkpoint has the state of the optimizer {then['class']}, and this run has {now['class']}; "
                    f"use {FRESH}, or another trainer.experiment_name with model.weights_load_path"
                )
            was, rate = then.get("learning_rate"), now.get("learning_rate")
            if isinstance(rate, float) and rate not in (was, UNSET_RATE):
                rates[optimizer] = rate
        yield
        for name, rate in rates.items():
            self._optimizers[name].learning_rate = rate
