"""What callbacks of the user's own keep where no checkpoint has it: a resume goes on without it, and says so.

Most such callbacks keep something, a last value that they print for example. So it counts of those only whose code
changes the training or what is recorded of it, as far as that shows in the code.
"""

from __future__ import annotations

import itertools
import numbers
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.callbacks.helping.attributes import held_by, mark
from prototrain.callbacks.hyperparameters.hyper_param import HyperParam
from prototrain.callbacks.proxies import user_object
from prototrain.callbacks.settings import SETTERS, may_change_training
from prototrain.checkpoint.generators import GENERATORS
from prototrain.private_api.of_keras import KerasVariable
from prototrain.system.attribute_uses import AttributeUses, attribute_uses, changes_variable, together
from prototrain.system.contents import is_own_code, is_place_or_time
from prototrain.system.objects import attributes_of, is_own, is_plain
from prototrain.system.own_code import functions_in, names_in, values_around
from prototrain.system.wording import some_of

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_CHANGES = {"apply_gradients", "load_weights", "put_scalar", "put_scalars", "set_value", "set_weights"}
_HOLDERS = {"keras_model", "model", "optimizer", "trainer"}  # attributes that what is trained hangs on
_SET = {"learning_rate", "stop_training", "trainable"}  # attributes, of whatever object
_SIMPLE = (bool, int, float, str)
_KEPT: tuple[type, ...] = (*_SIMPLE, numbers.Number, type(None), dict, list, tuple, set, deque, array)
_KEPT += (np.ndarray, np.generic, tf.Tensor, tf.Variable, KerasVariable, keras.metrics.Metric)
_KEPT += (*GENERATORS, tf.random.Generator, keras.random.SeedGenerator, itertools.count, itertools.cycle)

_Key: TypeAlias = tuple[str, str]
"""Whose a value is, "" for an attribute of the callback, and its name."""


class Unsaved:
    """Looks whether it has changed since a run began.

    Args:
        trainer: of the run.
        labels: of its callbacks.
    """

    def __init__(self, trainer: Trainer, labels: Mapping[Callback, str]) -> None:
        self._trainer = trainer
        self._labels = labels
        self._at_begin: dict[Callback, dict[_Key, Any]] = {}

    def begin(self) -> None:
        """Take note of what there is before the first step."""
        self._at_begin = {one: self._marks(one) for one in self._labels if _may_lose(one)}

    def look(self) -> list[str]:
        """What has changed since, in words, as reasons why a resume is not exact; each callback's once."""
        found = []
        for callback, before in list(self._at_begin.items()):
            now = self._marks(callback)
            # What is no number and new may be something that is only looked up once, such as a list of layers.
            new = {key for key, value in _kept(callback) if key not in before and isinstance(value, _SIMPLE)}
            changed = [key[1] for key, value in now.items() if key in new or value != before.get(key, value)]
            before.update(now)
            if changed and _changes_training(callback):
                del self._at_begin[callback]
                names = some_of(list(dict.fromkeys(changed)))
                found.append(f"{self._labels[callback]} keeps {names}, which no checkpoint has: give it a state_dict")
        return found

    def _marks(self, callback: Callback) -> dict[_Key, Any]:
        """Something for each thing kept that differs when that has changed."""
        state = self._trainer.state
        of_state = {id(value) for value in state.values() if not isinstance(value, (*_SIMPLE, type(None)))}
        elsewhere = held_by(state) | of_state | {id(self._trainer), *map(id, self._labels), *map(id, _layers(callback))}
        return {key: mark(value, elsewhere) for key, value in _kept(callback) if id(value) not in elsewhere}


def _layers(callback: Callback) -> list[Any]:
    """The proxies around a callback, the outermost first, and what is in the list behind them."""
    found: list[Any] = []
    while isinstance(callback, ProxyCallback):
        found.append(callback)
        callback = callback.callback
    return [*found, user_object(callback)]


def _own(callback: Callback) -> list[Any]:
    """What of a callback is the user's own code: functions that it was given, and its class."""
    found: list[Any] = []
    for layer in _layers(callback):
        found += [value for value in attributes_of(layer, ()).values() if is_own_code(value)]
        found += [type(layer)] * is_own(type(layer))
    return found


def _kept(callback: Callback) -> Iterator[tuple[_Key, Any]]:
    """What is kept: attributes, and what the code names outside of itself."""
    for key, value in _found(callback):
        is_data = isinstance(value, _KEPT) or is_plain(type(value))
        if is_data and not isinstance(value, Callback) and not is_place_or_time(value):
            yield key, value


def _found(callback: Callback) -> Iterator[tuple[_Key, Any]]:
    left_out: set[str] = set()
    for layer in _layers(callback):
        left_out |= {*getattr(layer, "not_compared", ())}
        if is_own(type(layer)) and not isinstance(layer, keras.callbacks.Callback):  # of Keras's, checkpoints have them
            besides = _of_library(type(layer)) | _of_one_hook(type(layer)) | left_out
            yield from ((("", name), value) for name, value in attributes_of(layer, besides).items())
    for owner, name, value in values_around(_own(callback)):
        if name not in left_out:
            yield (owner, name), value


def _may_lose(callback: Callback) -> bool:
    """Whether code of the user's own runs which may change the training, without a `state_dict` of its own."""
    saves = any(is_own_code(getattr(layer, "state_dict", None)) for layer in _layers(callback))
    return may_change_training(callback) and bool(_own(callback)) and not saves


def _changes_training(callback: Callback) -> bool:
    """Whether that code changes something of the training; asked once it has run, and has set attributes of its own."""
    thing, own = user_object(callback), _own(callback)
    if getattr(thing, "changes_training", None) is True or isinstance(thing, SETTERS):
        return True
    uses = together(attribute_uses(function.__code__) for function in functions_in(own))
    if uses.read & _CHANGES or any(map(changes_variable, uses.read)) or {"apply", "optimizer"} <= uses.read:
        return True
    if "StopTraining" in names_in(own) or "state" in uses.items:
        return True
    layers = _layers(callback)
    given = [value for layer in layers for value in attributes_of(layer, ()).values()]
    if "set" in uses.read and any(isinstance(value, HyperParam) for value in given):
        return True
    set_on_others = {
        name for holder, name in uses.set_on if holder in _HOLDERS or (not holder and uses.read & _HOLDERS)
    }
    of_itself = set().union(*(attributes_of(layer, ()) for layer in layers))
    return bool((set_on_others | uses.stored & _SET) - of_itself)


def _of_one_hook(kind: type) -> set[str]:
    """The attributes that nothing is kept in from one hook to another: they are only filled, or set anew wherever they
    are used, or set anew by `before_epoch` alone, which a resume calls again amid an epoch."""
    members = [(name, value) for base in kind.__mro__ if is_own(base) for name, value in vars(base).items()]
    uses = {
        name: attribute_uses(value.__code__)
        for name, value in reversed(members)
        if isinstance(value, FunctionType) and name != "__init__"
    }
    again = [uses["before_epoch"]] if "before_epoch" in uses else []
    others = together(one for name, one in uses.items() if name != "before_epoch")
    every = together(uses.values())
    made_again = _anew_wherever(again) - others.stored - others.in_place - others.items
    filled = (every.in_place | every.items) - every.read - every.stored
    return _anew_wherever([*uses.values()]) | made_again | filled


def _anew_wherever(uses: list[AttributeUses]) -> set[str]:
    """The attributes that are set anew in each function that has to do with them."""
    return {name for name in together(uses).anew if all(name in one.anew or name not in one.touched for one in uses)}


def _of_library(kind: type) -> set[str]:
    """The names that the bases of a class which are not the user's have in their code: those they keep themselves."""
    bases = [base for base in kind.__mro__ if not is_own(base)]
    functions = [value for base in bases for value in vars(base).values() if isinstance(value, FunctionType)]
    return set().union(*(function.__code__.co_names for function in functions))
