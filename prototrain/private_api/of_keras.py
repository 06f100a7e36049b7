"""Keras: layers, variables, optimizers, and its global state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from prototrain.private_api import private

CALLBACK_SCRATCH = {"_model", "params", "csv_file", "writer", "_writers", "_summary_module"}
"""Attributes of Keras's callbacks that are not state: set in every run, or open files."""


# -- global state -----------------------------------------------------------------------------------------------------


@private
def keras_seed() -> int | None:
    """The last seed of `keras.utils.set_random_seed`; None if there was none, or the session was cleared since."""
    from keras.src.backend.common import global_state
    from keras.src.utils import rng_utils

    found: int | None = global_state.get_global_attribute(rng_utils.GLOBAL_RANDOM_SEED)
    return found


@contextmanager
def keras_globals_kept() -> Iterator[None]:
    """Restore, at the end, what Keras keeps for each thread: seeds and counts of names."""
    from keras.src.backend.common import global_state

    trackers = global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER
    values = [dict(vars(tracker)) for tracker in trackers]
    try:
        yield
    finally:
        global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER = trackers
        for tracker, before in zip(trackers, values, strict=True):
            vars(tracker).clear()
            vars(tracker).update(before)


@private
def in_stateless_scope() -> bool:
    """Whether an assignment goes to a `keras.StatelessScope`, and the variable keeps its value."""
    from keras.src.backend.common import stateless_scope

    return bool(stateless_scope.in_stateless_scope())


# -- models and layers ------------------------------------------------------------------------------------------------


@private
def compiled_parts(model: keras.Model) -> tuple[Any, ...]:
    """Objects that each `compile` of a model makes anew."""
    return model.optimizer, model._compile_loss, model._compile_metrics


@private
def functional_kinds() -> tuple[type, ...]:
    """The class of `keras.Model(inputs, outputs)`."""
    from keras.src.models.functional import Functional

    return (Functional,)


@private
def layers_within(layer: Any) -> list[Any]:
    """A layer and all layers inside it, at any depth."""
    return list(layer._flatten_layers())


@private
def own_weights(layer: Any) -> list[Any]:
    """The variables of a layer itself, without those of inner layers, seeds and metrics."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


@private
def forget_losses(layer: Any) -> None:
    """Drop the losses of a layer's last call: tensors of a finished graph."""
    layer._clear_losses()


@private
def made_by(tensor: Any) -> Any:
    """The layer or operation that made a symbolic tensor of a functional model."""
    return tensor._keras_history.operation


# -- variables --------------------------------------------------------------------------------------------------------


KerasVariable: Any = keras.Variable


def call_by(variable: Any, path: str) -> None:
    """Give a Keras variable another path."""
    variable._path = path


@private
def hold(variable: Any, value: tf.Variable) -> None:
    """Give a Keras variable another `tf.Variable`."""
    variable._value  # noqa: B018  (a version without it keeps the value somewhere else)
    variable._value = value


# -- optimizers -------------------------------------------------------------------------------------------------------


@private
def adam_slots(optimizer: Any, variable: Any) -> tuple[Any, Any]:
    """The two slots of a variable in `keras.optimizers.Adam`: the means of gradients and of their squares."""
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


@private
def learning_rate_source(optimizer: Any) -> Any:
    """The schedule or function that was given as learning rate; None if it was a number."""
    found = optimizer._learning_rate
    return found if callable(found) and not isinstance(found, KerasVariable) else None


def kept_from_decay(optimizer: Any) -> list[str]:
    """The arguments of `exclude_from_weight_decay`: parts of names, and the number of variables."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    names = [] if pattern is None else sorted(pattern.pattern.split("|"))
    number = len(getattr(optimizer, "_exclude_from_weight_decay", ()))
    return names + [f"{number} variables"] * bool(number)


def copy_kept_from_decay(source: Any, target: Any) -> None:
    """Copy the variables of `exclude_from_weight_decay` to another optimizer."""
    if kept_from_decay(source):
        target._exclude_from_weight_decay = set(source._exclude_from_weight_decay)
        target._exclude_from_weight_decay_pattern = source._exclude_from_weight_decay_pattern


@private
def expect_averages(optimizer: Any) -> None:
    """Keep an optimizer from adding up the gradients of all towers, because they are averages already."""
    optimizer._all_reduce_sum_gradients  # noqa: B018  (a version without it adds them up somewhere else)
    optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables
