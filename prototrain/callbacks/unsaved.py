"""What callbacks of the user's own keep where no checkpoint has it: a resume goes on without it, and says so.

Most such callbacks keep something, a last value that they print for example. So it counts of those only whose code
changes something of the training: which assigns to variables, or to attributes of other objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from types import FunctionType
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.callbacks.helping.attributes import held_by, mark
from prototrain.callbacks.proxies import user_object
from prototrain.callbacks.settings import may_change_training
from prototrain.checkpoint.generators import GENERATORS
from prototrain.private_api.of_keras import KerasVariable
from prototrain.system.contents import is_own_code, is_place_or_time
from prototrain.system.function_code import attributes_in
from prototrain.system.objects import is_own, is_plain
from prototrain.system.own_code import functions_in, names_in, values_around

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_CHANGES = {
    "apply_gradients",
    "assign",
    "assign_add",
    "assign_sub",
    "load_weights",
    "scatter_nd_update",
    "scatter_update",
    "set",
    "set_value",
    "set_weights",
    "state",
}
_AGAIN = {"setup", "before_train", "before_epoch", "set_model", "on_train_begin", "on_epoch_begin"}
_SET = {"learning_rate", "trainable"}  # attributes, whether or not the callback has one of the name itself
_SIMPLE = (bool, int, float, str)
_KEPT = (*_SIMPLE, dict, list, tuple, set, deque, np.ndarray, np.generic, tf.Variable, KerasVariable)
_SHOWN = 3  # names of what has changed


class Unsaved:
    """Looks whether it has changed since a run began.

    Args:
        trainer: of the run.
        labels: of its callbacks.
    """

    def __init__(self, trainer: Trainer, labels: Mapping[Callback, str]) -> None:
        self._trainer = trainer
        self._labels = labels
        self._at_begin: dict[Callback, dict[str, Any]] = {}

    def begin(self) -> None:
        """Take note of what there is before the first step."""
        self._at_begin = {one: self._marks(one) for one in self._labels if _may_lose(one)}

    def look(self) -> list[str]:
        """What has changed since, in words, as reasons why a resume is not exact; each callback's once."""
        found = []
        for callback, before in list(self._at_begin.items()):
            now = self._marks(callback)
            # What is no number and new may be something that is only looked up once, such as a list of layers.
            new = {name for name, value in _kept(callback) if name not in before and isinstance(value, _SIMPLE)}
            changed = [name for name, value in now.items() if name in new or value != before.get(name, value)]
            before.update(now)
            if changed and _changes_training(callback):
                del self._at_begin[callback]
                more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
                names = ", ".join(changed[:_SHOWN]) + more
                found.append(f"{self._labels[callback]} keeps {names}, which no checkpoint has: give it a state_dict")
        return found

    def _marks(self, callback: Callback) -> dict[str, Any]:
        """Something for each thing kept that differs when that has changed, by name."""
        elsewhere = held_by(self._trainer.state) | {id(self._trainer), id(callback)}
        return {name: mark(value, elsewhere) for name, value in _kept(callback) if id(value) not in elsewhere}


def _own(thing: Any) -> list[Any]:
    """What of a callback is the user's own code: functions that it was given, and its class."""
    given = [value for value in vars(thing).values() if is_own_code(value)]
    return given + [type(thing)] * is_own(type(thing))


def _kept(callback: Callback) -> Iterator[tuple[str, Any]]:
    """What is kept, by name: attributes, and what the code names outside of itself."""
    thing = user_object(callback)
    left_out = {*getattr(thing, "not_compared", ()), *_names_of_library(type(thing)), *_made_anew(type(thing))}
    held = {} if isinstance(thing, keras.callbacks.Callback) else vars(thing)  # of Keras's, checkpoints have them
    for name, value in chain(held.items(), values_around(_own(thing))):
        is_data = isinstance(value, (*_KEPT, *GENERATORS)) or is_plain(type(value))
        if name not in left_out and is_data and not is_place_or_time(value):
            yield name, value


def _may_lose(callback: Callback) -> bool:
    """Whether code of the user's own runs which may change the training, without a `state_dict` of its own."""
    thing = user_object(callback)
    return may_change_training(callback) and bool(_own(thing)) and not is_own_code(getattr(thing, "state_dict", None))


def _changes_training(callback: Callback) -> bool:
    """Whether that code changes something of the training; asked once it has run, and has set attributes of its own."""
    thing = user_object(callback)
    own = _own(thing)
    stored = set().union(*(attributes_in(function.__code__)[1] for function in functions_in(own)))
    is_setter = getattr(thing, "changes_training", None) is True
    return is_setter or bool(names_in(own) & _CHANGES) or bool(stored & _SET) or bool(stored - vars(thing).keys())


def _made_anew(kind: type) -> set[str]:
    """The attributes that only the hooks set which a resume calls again, and not by what they were."""
    again: set[str] = set()
    others: set[str] = set()
    for name, function in ((n, f) for base in kind.__mro__ if is_own(base) for n, f in vars(base).items()):
        if isinstance(function, FunctionType) and name != "__init__":
            read, stored = attributes_in(function.__code__)
            again |= stored if name in _AGAIN else set()
            others |= read & stored if name in _AGAIN else stored
    return again - others


def _names_of_library(kind: type) -> set[str]:
    """The names that the bases of a class which are not the user's have in their code: those they keep themselves."""
    bases = [base for base in kind.__mro__ if not is_own(base)]
    functions = [value for base in bases for value in vars(base).values() if isinstance(value, FunctionType)]
    return set().union(*(function.__code__.co_names for function in functions))
