"""Looking at a trainer's state without changing it: what in it is a variable, and what has become another."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.checkpoint.state import OF_CALLBACKS, StateEntries
from prototrain.private_api.graphs import trackable_kinds
from prototrain.private_api.of_keras import KerasVariable
from prototrain.towers import components


def model_variables(state: dict[str, Any]) -> dict[str, Any]:
    """The variables in a state dict that no callback has added, by name."""
    entries = StateEntries(state).variables
    found = {name: entry for name, entry in entries.items() if isinstance(entry, tf.Variable | KerasVariable)}
    return {name: variable for name, variable in found.items() if not name.startswith(OF_CALLBACKS)}


def variables_in(state: dict[str, Any]) -> list[Any]:
    """The variables of TensorFlow and Keras in a state dict, also those of layers and modules in it."""
    return [entry for entry in StateEntries(state).variables.values() if isinstance(entry, tf.Variable | KerasVariable)]


def trackables(state: dict[str, Any]) -> list[Any]:
    """What of a state dict is TensorFlow's or Keras's: each of its variables, and what is saved in files of its own."""
    entries = StateEntries(state)
    found = [entry for entry in entries.variables.values() if not isinstance(entry, np.ndarray)]
    return found + [entry for entry in state.values() if isinstance(entry, trackable_kinds())]


def looking(state: dict[str, Any]) -> Callable[[], list[str]]:
    """Look at everything in a state dict that counts as data.

    Returns:
        a function that names what has become another since.
    """
    entries = StateEntries(state)
    values = entries.values()
    held = {name: _held(variable) for name, variable in entries.variables.items()}

    def changed() -> list[str]:
        now = entries.values()
        others = [key for key in values if json.dumps(values[key]) != json.dumps(now[key])]
        return others + [
            name for name, before in held.items() if _bits(before) != _bits(_held(entries.variables[name]))
        ]

    return changed


def _held(variable: Any) -> list[Any]:
    """The present values of a variable on each tower; of a tensor nothing is copied before it is changed."""
    if isinstance(variable, np.ndarray):
        return [np.copy(variable)]
    return [tf.identity(copy) for copy in components(variable)]


def _bits(values: list[Any]) -> list[Any]:
    arrays = [np.asarray(value) for value in values]
    return [array.tolist() if array.dtype == object else array.tobytes() for array in arrays]
