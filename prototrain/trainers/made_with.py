"""What the step of a trainer of the user's own depends on besides the model and what is optimised."""

from __future__ import annotations

import dis
import functools
import itertools
import os
from collections.abc import Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from prototrain.callbacks.settings import lengths_named
from prototrain.model.layer_settings import layer_settings
from prototrain.system.objects import attributes_of, is_own
from prototrain.system.own_code import attributes, code_of, noted, reached
from prototrain.trainers.optimization import optimizer_code, optimizer_settings

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_PLAIN = (bool, bytes, complex, float, int, str, type(None))
_CODE = "own code"  # which is no name of an attribute


def made_with(trainer: Trainer) -> dict[str, Any] | None:
    """What a trainer has been given, the code of its class and the values that this names, as JSON can hold them; None
    of one of prototrain's.

    Of what is in `trainer.state` checkpoints have the values, so that only what it was made with counts; where the run
    lies does not count. The first time that this is asked counts, when a run begins: later ones find what training has
    made of it.
    """
    kind = type(trainer)
    if not is_own(kind):
        return None
    given = noted(
        trainer,
        lambda: {
            **attributes(trainer, besides=_not_given(trainer)),
            **reached(kind),
            **_of_state(trainer),
            _CODE: code_of(kind),
        },
    )
    return {**given, **lengths_named(trainer, kind)}


def _of_state(trainer: Trainer) -> dict[str, Any]:
    """What the entries of a trainer's state were made with, by name, without what they hold."""
    found = {name: _made_as(entry) for name, entry in trainer.state.items() if not isinstance(entry, tf.Variable)}
    return {f"state.{name}": settings for name, settings in found.items() if settings}


def _made_as(entry: Any) -> dict[str, Any]:
    if isinstance(entry, keras.layers.Layer):
        return layer_settings([entry])
    if isinstance(entry, keras.optimizers.Optimizer):
        settings = optimizer_settings(entry) | optimizer_code(entry)
        return {
            name: value for name, value in settings.items() if not isinstance(value, float) or name != "learning_rate"
        }
    if not is_own(type(entry)):
        return {}
    given = attributes_of(entry, _saved_by(entry))
    others = {
        name for name, value in attributes_of(entry, ()).items() if name not in given or type(value) not in _PLAIN
    }
    return {**attributes(entry, besides=others), _CODE: code_of(type(entry))}


def _saved_by(entry: Any) -> set[str]:
    """The attributes of an object that it saves under their names."""
    try:
        saved = entry.state_dict()
    except Exception:  # one that has none; if it fails, the first save says so
        return set()
    names = set(saved) if isinstance(saved, Mapping) else set()
    return {name for name in attributes_of(entry, ()) if name in names or name.lstrip("_") in names}


def _not_given(trainer: Trainer) -> set[str]:
    saved = [entry for entry in trainer.state.values() if not isinstance(entry, _PLAIN)]
    place = None if trainer.experiment is None else os.path.abspath(trainer.experiment.directory)
    found = _set_by_others(type(trainer))
    for name, value in attributes_of(trainer, found).items():
        is_place = isinstance(value, str) and os.path.abspath(value) == place
        if is_place or any(value is entry for entry in saved):
            found.add(name)
    return found


def _set_by_others(kind: type) -> set[str]:
    """The attributes that a class's bases set which are not the user's own."""
    return set().union(*(_set_by(base) for base in kind.__mro__ if not is_own(base)))


@functools.cache
def _set_by(kind: type) -> set[str]:
    found = set()
    for function in vars(kind).values():
        ops = list(dis.get_instructions(function)) if isinstance(function, FunctionType) else []
        for of, op in itertools.pairwise(ops):
            # In Python 3.13 one op may load two variables.
            if op.opname == "STORE_ATTR" and "self" in (of.argval if isinstance(of.argval, tuple) else [of.argval]):
                found.add(str(op.argval))
    return found
