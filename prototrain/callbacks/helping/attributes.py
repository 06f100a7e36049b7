"""The attributes of objects that know nothing of checkpoints: whether they have changed, and as JSON can hold them."""

from __future__ import annotations

import json
import pickle
import threading
from collections import deque
from collections.abc import Collection
from hashlib import sha256
from io import BufferedWriter, TextIOWrapper
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.checkpoint.json_codec import decode, encode
from prototrain.checkpoint.random import GENERATORS, GeneratorState
from prototrain.checkpoint.state import StateEntries
from prototrain.config import json_form
from prototrain.data.rule import draws
from prototrain.data.stages import stages
from prototrain.errors import CheckpointError
from prototrain.private_api.graphs import trackable_kinds
from prototrain.private_api.of_keras import KerasVariable

_VARIABLES = (tf.Variable, KerasVariable)
_OF_VARIABLES = (keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric, tf.Module)
# What has nothing inside that training depends on: told by identity.
_STATELESS = (
    BufferedWriter,
    FunctionType,
    ModuleType,
    keras.losses.Loss,
    keras.utils.Progbar,
    np.ufunc,
    tf.summary.SummaryWriter,
    tf.types.experimental.PolymorphicFunction,
    type,
    type(threading.Lock()),
    type(threading.RLock()),
)
_LARGEST = 1 << 24  # characters of an attribute, which JSON is not made for
_MADE = {
    "deque": deque,
    "frozenset": frozenset,
    "name": lambda name: json_form.decode(name, "", [""]),
    "set": set,
    "tensor": tf.constant,
    "value": lambda value: value,
}


def mark(value: Any, elsewhere: Collection[int] = ()) -> Any:
    """Something that differs when an attribute has changed, or what is inside of it; None if that cannot be known."""
    if isinstance(value, _STATELESS):
        return value
    digest = sha256()
    try:
        _Contents(digest.update, elsewhere).dump(value)
    except Exception:  # whatever an object of the user's own raises that is not made for it
        return None
    return digest.hexdigest()


def held_by(state: dict[str, Any]) -> set[int]:
    """The identities of what a checkpoint of a state dict holds anyway."""
    held = [entry for entry in StateEntries(state).variables.values() if not isinstance(entry, np.ndarray)]
    held += [entry for entry in state.values() if isinstance(entry, trackable_kinds())]
    return set(map(id, held + [variable.value for variable in held if isinstance(variable, KerasVariable)]))


class _Contents(pickle.Pickler):
    """Writes what objects hold, the same for equal ones: never to be read. What has no state is but an identity."""

    def __init__(self, write: Any, elsewhere: Collection[int]) -> None:
        super().__init__(SimpleNamespace(write=write), protocol=5)
        self.fast = True  # whether two parts are one object or equal ones makes no difference
        self._elsewhere = elsewhere

    def persistent_id(self, value: Any) -> Any:
        if self._is_elsewhere(value) or isinstance(value, _STATELESS):
            return id(value)
        if isinstance(value, (MethodType, BuiltinFunctionType)):
            return value.__name__, value.__self__
        if isinstance(value, TextIOWrapper):
            return id(value), value.buffer
        if isinstance(value, tf.data.Dataset):
            return None if any(map(draws, stages(value))) else id(value)
        if isinstance(value, GENERATORS):
            return type(value), GeneratorState(value).state_dict()
        if isinstance(value, _VARIABLES):
            return type(value), value.numpy()
        variables = _variables(value)
        return None if variables is None else [each for each in variables if not self._is_elsewhere(each)]

    def _is_elsewhere(self, value: Any) -> bool:
        return id(value) in self._elsewhere or (isinstance(value, KerasVariable) and id(value.value) in self._elsewhere)


def _variables(value: Any) -> list[Any] | None:
    if isinstance(value, _VARIABLES):
        return [value]
    if isinstance(value, keras.random.SeedGenerator):
        return [value.state]
    return list(value.variables) if isinstance(value, _OF_VARIABLES) else None


class _Values:
    """Takes and gives the values of variables."""

    def __init__(self, variables: list[Any]) -> None:
        self._variables = variables

    def state_dict(self) -> Any:
        return [np.asarray(variable.numpy()) for variable in self._variables]

    def load_state_dict(self, state: Any) -> None:
        for variable, value in zip(self._variables, state, strict=True):
            variable.assign(value)


def inside_of(value: Any) -> Any:
    """What takes and gives the state of an object that stays the same one; None if that is not known."""
    if isinstance(value, GENERATORS):
        return GeneratorState(value)
    variables = _variables(value)
    return None if variables is None else _Values(variables)


def encoded(value: Any) -> list[Any]:
    """What `decoded` makes a value of, as JSON can hold it.

    Raises:
        CheckpointError: JSON cannot, or not so that it would come back as it is.
        ConfigError: that, of what is found by its name.
    """
    how, parts = "value", [value]
    if isinstance(value, tf.Tensor):
        how, parts = "tensor", [value.numpy()]
    elif isinstance(value, deque):
        how, parts = "deque", [list(value), value.maxlen]
    elif type(value) in (set, frozenset):
        how, parts = type(value).__name__, [list(value)]
    elif callable(value):
        how, parts = "name", [json_form.encode(value, "", [])]
    coded = [how, encode(parts, how)]
    if mark(decoded(*coded)) != mark(value) or len(json.dumps(coded)) > _LARGEST:
        raise CheckpointError(f"a {type(value).__name__} would not come back as it is, or is too large")
    return coded


def decoded(how: str, coded: Any) -> Any:
    """What `encoded` was given."""
    parts = decode(coded)
    return _MADE[how](*parts)
