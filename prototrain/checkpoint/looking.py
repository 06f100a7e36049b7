"""Which entries of a trainer's state are variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.checkpoint.state import OF_CALLBACKS, StateEntries
from prototrain.private_api.graphs import trackable_kinds
from prototrain.private_api.of_keras import KerasVariable


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
