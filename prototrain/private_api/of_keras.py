"""Keras: what its layers, variables and optimizers keep to themselves, and what it keeps for a thread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.private_api.needs import needs
from prototrain.private_api.runtime import tensorflow_seed

_LAYER = "keras.src.layers.layer:Layer"
_GLOBALS = "keras.src.backend.common.global_state"

CALLBACK_SCRATCH = {"_model", "params", "csv_file", "writer", "_writers", "_summary_module"}
"""The attributes of Keras's own callbacks that are no state: what one is told anew in every run, and open files."""


# -- what is kept for a thread ----------------------------------------------------------------------------------------


@needs(
    f"{_GLOBALS}:get_global_attribute",
    "keras.src.utils.rng_utils:set_random_seed",
    without="the seed of keras.utils.set_random_seed is not heard of; give trainer.random_seed",
    instead=lambda: None,
)
def keras_seed() -> int | None:
    """What `keras.utils.set_random_seed` was last called with; None if it was not, or the session was cleared since.

    It relies on Keras noting it. Versions up to 3.7 do not, but tell TensorFlow.
    """
    from keras.src.backend.common import global_state
    from keras.src.utils import rng_utils

    if not hasattr(rng_utils, "GLOBAL_RANDOM_SEED"):
        return tensorflow_seed()
    found: int | None = global_state.get_global_attribute(rng_utils.GLOBAL_RANDOM_SEED)
    return found


@needs(
    f"{_GLOBALS}:GLOBAL_STATE_TRACKER",
    f"{_GLOBALS}:GLOBAL_SETTINGS_TRACKER",
    without="building a model may change the names and seeds that Keras gives after it",
    instead=nullcontext,
)
@contextmanager
def keras_globals_kept() -> Iterator[None]:
    """Put back, at the end, what Keras keeps by thread: seeds, its counts of names. It relies on two trackers."""
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


@needs(
    "keras.src.backend.common.stateless_scope:in_stateless_scope",
    without="an assignment in a keras.StatelessScope counts as one of the step",
    instead=lambda: False,
)
def in_stateless_scope() -> bool:
    """Whether variables are assigned to a `keras.StatelessScope` now and keep their values."""
    from keras.src.backend.common import stateless_scope

    return bool(stateless_scope.in_stateless_scope())


def flatten_with_path(structure: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The leaves of a nested structure with their paths, as `keras.tree.flatten_with_path`, which Keras 3.5 lacks."""
    if hasattr(keras.tree, "flatten_with_path"):
        return list(keras.tree.flatten_with_path(structure))
    import optree  # which that is made of

    paths, leaves, _ = optree.tree_flatten_with_path(structure, none_is_leaf=True, namespace="keras")
    return list(zip(paths, leaves, strict=True))


# -- models and layers ------------------------------------------------------------------------------------------------


@needs(
    "keras.src.trainers.trainer:Trainer._compile_loss",
    "keras.src.trainers.trainer:Trainer._compile_metrics",
    without="a model that is compiled again with the same optimizer is not noticed by the KerasTrainer that has it",
    instead=lambda model: (model.optimizer,),
)
def compiled_parts(model: keras.Model) -> tuple[Any, ...]:
    """Objects that a model has from its `compile`, others after each. It relies on where Keras keeps them."""
    return model.optimizer, model._compile_loss, model._compile_metrics


@needs(
    "keras.src.models.functional:Functional",
    without="a functional model that build() makes is made once for each call of it",
    instead=lambda: (),
)
def functional_kinds() -> tuple[type, ...]:
    """The class that `keras.Model(inputs, outputs)` is of, and has its constructor from."""
    from keras.src.models.functional import Functional

    return (Functional,)


def snake_case(name: str) -> str:
    """A layer's class in the name that Keras gives to a layer without one. It relies on `Conv2D` giving ``conv2d``."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _known_within(layer: Any) -> list[Any]:
    return [layer, *(inner for each in getattr(layer, "layers", ()) for inner in _known_within(each))]


@needs(
    f"{_LAYER}._flatten_layers",
    without="layers inside of other layers than models are not looked at",
    instead=_known_within,
)
def layers_within(layer: Any) -> list[Any]:
    """A layer and all layers inside of it, at any depth."""
    return list(layer._flatten_layers())


def _without_inner(layer: Any) -> list[Any]:
    inner = {id(weight) for each in layers_within(layer)[1:] for weight in each.weights}
    return [weight for weight in layer.weights if id(weight) not in inner]


@needs(
    f"{_LAYER}._trainable_variables",
    f"{_LAYER}._non_trainable_variables",
    without="a variable that two layers share counts as that of the inner one",
    instead=_without_inner,
)
def own_weights(layer: Any) -> list[Any]:
    """The Keras variables of a layer itself, without those of layers inside of it, seeds and metrics."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


@needs(
    f"{_LAYER}._clear_losses",
    without="layers keep the losses of their last call in memory",
    instead=lambda layer: None,
)
def forget_losses(layer: Any) -> None:
    """Drop the losses that a layer has kept of its last call: tensors of a graph that is done."""
    layer._clear_losses()


@needs(
    "keras.src.ops.node:KerasHistory.operation",
    without="functional models that build() makes are told apart by their order only",
    instead=lambda tensor: None,
)
def made_by(tensor: Any) -> Any:
    """The layer or operation that a symbolic tensor of a functional model comes from. It relies on `_keras_history`."""
    return tensor._keras_history.operation


# -- variables --------------------------------------------------------------------------------------------------------


@needs(
    "keras.src.backend:Variable",
    without="what is in trainer.state and is Keras's own variable may not be known as one",
    instead=lambda: keras.Variable,
)
def variable_kind() -> Any:
    """The class of the variables that Keras makes. Before Keras 3.7 `keras.Variable` is a class below it."""
    from keras.src import backend

    return backend.Variable


KerasVariable: Any = variable_kind()
"""In place of `keras.Variable`, where it is asked whether something is one."""


def call_by(variable: Any, path: str) -> None:
    """Let a Keras variable have another path, a property of `_path`; before Keras 3.6 it was an attribute itself."""
    setattr(variable, "_path" if isinstance(getattr(type(variable), "path", None), property) else "path", path)


def _cannot_place(variable: Any, value: Any) -> Any:
    raise ModelError(
        f"Keras {keras.__version__} does not let its variable {variable.path} be placed again; "
        "make the model's layers inside of build()"
    )


@needs(
    "keras:Variable._value",
    without="layers that a model makes outside of build() cannot be trained on several towers",
    instead=_cannot_place,
)
def hold(variable: Any, value: tf.Variable) -> None:
    """Let a Keras variable hold another `tf.Variable`. It relies on `_value` being where it has it."""
    variable._value = value


@needs(
    "keras:Variable._value",
    without="towers that draw random numbers in a layer cannot be trained",
    instead=_cannot_place,
)
def stand_in(variable: Any, value: tf.Variable) -> Any:
    """An object that is a Keras variable in all but holding another `tf.Variable`. It relies on `_value`, as `hold`."""
    other = object.__new__(type(variable))
    vars(other).update(vars(variable), _value=value)
    return other


# -- optimizers -------------------------------------------------------------------------------------------------------


@needs(
    "keras:optimizers.Adam._get_variable_index",
    "keras:optimizers.Adam._momentums",
    "keras:optimizers.Adam._velocities",
    without="Adam updates as Keras has it, in more time",
    instead=lambda optimizer, variable: None,
)
def adam_slots(optimizer: Any, variable: Any) -> tuple[Any, Any] | None:
    """A variable's two slots of `keras.optimizers.Adam`, the means of gradients and of their squares; None if unknown.

    It relies on lists with an entry for each variable.
    """
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


@needs(
    "keras:optimizers.Adam._learning_rate",
    without="other code of a learning-rate schedule of your own that an optimizer is made with is not seen by a resume",
    instead=lambda optimizer: None,
)
def learning_rate_source(optimizer: Any) -> Any:
    """The schedule or function that an optimizer has its learning rate from; None if it has a number."""
    found = optimizer._learning_rate
    return found if callable(found) and not isinstance(found, KerasVariable) else None


@needs(
    "keras.src.optimizers.base_optimizer:BaseOptimizer._exclude_from_weight_decay_pattern",
    without="that other variables of an optimizer decay is not seen by a resume",
    instead=lambda optimizer: [],
)
def kept_from_decay(optimizer: Any) -> list[str]:
    """What `exclude_from_weight_decay` was given: parts of names in their order, and how many variables."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    names = [] if pattern is None else sorted(pattern.pattern.split("|"))
    number = len(getattr(optimizer, "_exclude_from_weight_decay", ()))
    return names + [f"{number} variables"] * bool(number)


def copy_kept_from_decay(source: Any, target: Any) -> None:
    """Have an optimizer leave out the variables of another one from weight decay, see `exclude_from_weight_decay`."""
    if kept_from_decay(source):
        target._exclude_from_weight_decay = set(source._exclude_from_weight_decay)
        target._exclude_from_weight_decay_pattern = source._exclude_from_weight_decay_pattern


def _cannot_average(optimizer: Any) -> None:
    raise ModelError(
        f"several towers need a Keras that adds up their gradients where prototrain can keep it from doing so, and "
        f"Keras {keras.__version__} does not; train on one tower, or with another version of Keras"
    )


@needs(
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients",
    without="several towers cannot be trained",
    instead=_cannot_average,
)
def expect_averages(optimizer: Any) -> None:
    """Keep an optimizer from adding up the gradients of all towers, because they are averages already.

    It relies on `_all_reduce_sum_gradients` being all that does so.
    """
    optimizer._all_reduce_sum_gradients = _as_they_are


def _as_they_are(gradients_and_variables: Any) -> Any:
    return gradients_and_variables


@needs(
    "keras.src.backend:get_keras_mask",
    without="micro-batches of a Keras model with masks are averaged by their examples",
    instead=lambda tensor: None,
)
def mask_of(tensor: Any) -> Any:
    """The mask that layers or losses have attached to a tensor, or None."""
    from keras.src import backend

    return backend.get_keras_mask(tensor)
