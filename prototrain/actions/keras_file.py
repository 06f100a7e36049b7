"""The network of a trained model as a `.keras` file."""

from __future__ import annotations

import os
from pathlib import Path

import keras
import numpy as np

from prototrain.actions.restore import Restored
from prototrain.errors import ExperimentError, ModelError
from prototrain.model.built import BuiltModel
from prototrain.system.files import sync
from prototrain.system.tables import plain_table
from prototrain.system.terminal import say
from prototrain.system.tracebacks import first_line


def export_keras(restored: Restored) -> None:
    """Write ``exported/<step>.keras`` in the experiment's directory.

    Raises:
        ModelError: the network is not one Keras model, or Keras cannot save it.
        ExperimentError: the file is there already, or cannot be written.
    """
    network = whole_network(restored.built)
    final = restored.experiment.directory / "exported" / f"{restored.checkpoint.step}.keras"
    if final.exists():
        raise ExperimentError(f"{final} is there already; delete it to export this step again")
    temporary = final.with_name(f".tmp-{os.getpid()}-{final.name}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        outcome = _save(network, temporary)
        sync(temporary)
        temporary.rename(final)
        sync(final.parent)
    except OSError as error:
        raise ExperimentError(f"cannot write {final}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    say(plain_table({**restored.describe(), "network": network.name, "compared": outcome}), end="\n\n")
    say(f"exported to {restored.experiment.keep(final)}")


def whole_network(built: BuiltModel) -> keras.Model:
    """The one Keras model that has all of a model's weights.

    Raises:
        ModelError: there is none.
    """
    weights = {id(v.value) for layer in built.keras_layers.values() for v in layer.weights}
    of_build = {id(v) for v in built.variables.values() if v.trainable}
    for layer in built.keras_layers.values():
        if isinstance(layer, keras.Model) and weights | of_build <= {id(v.value) for v in layer.weights}:
            return layer
    outermost = list(built.keras_layers) or ["no layer"]
    raise ModelError(
        "the network is not one Keras model: build() uses "
        f"{', '.join(outermost[:6])}{' and more' if len(outermost) > 6 else ''}; put all layers into one "
        "keras.Sequential or keras.Model, or export a SavedModel"
    )


def _save(network: keras.Model, path: Path) -> str:
    """Save a network, load it again, and compare the weights.

    Returns:
        what was compared, in words.
    """
    try:
        network.save(path)
        loaded = keras.models.load_model(path, compile=False)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ModelError(
            f"Keras cannot save the network {network.name} and load it again: {first_line(error)}"
        ) from error
    pairs = list(zip(network.get_weights(), loaded.get_weights(), strict=True))
    if not all(np.array_equal(mine, theirs, equal_nan=True) for mine, theirs in pairs):
        raise ModelError(f"the network {network.name} has other weights after it was saved and loaded again")
    return f"{len(pairs)} arrays of weights, equal after loading"
