"""Export the model as a SavedModel or a Keras file, and check that the results are the same."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import keras
import numpy as np

from prototrain.actions.restore import add_checkpoint, restore
from prototrain.actions.saved_model import ServedModel, compare
from prototrain.errors import ConfigError, ExperimentError, ModelError
from prototrain.model import ModelProtocol
from prototrain.model.built import BuiltModel
from prototrain.system.files import appearing
from prototrain.system.terminal import plain_table, say, shorten_list
from prototrain.system.tracebacks import cause

_SUFFIXES = {"saved_model": "", "keras": ".keras"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action's arguments to a parser."""
    add_checkpoint(parser)
    text = "a SavedModel with the config's inputs and outputs, or a .keras file of a network that is one Keras model"
    parser.add_argument(
        "--format", choices=tuple(_SUFFIXES), default="saved_model", help=f"{text}; default: %(default)s"
    )


def run(model: ModelProtocol, args: Namespace) -> None:
    """Write ``exported/<step>/`` or ``exported/<step>.keras`` to the experiment's directory.

    The signature ``serving_default`` takes ``actions.export.inputs`` and returns ``actions.export.outputs``, for any
    number of examples. The SavedModel is loaded and run on training data; it is kept only if its results equal the
    model's. A ``.keras`` file is kept only if it loads with equal weights.
    """
    is_keras = args.format == "keras"
    inputs, outputs = ([] if is_keras else _names(model, f"actions.export.{part}") for part in ("inputs", "outputs"))
    restored = restore(model, args.checkpoint)
    final = restored.experiment.directory / "exported" / f"{restored.checkpoint.step}{_SUFFIXES[args.format]}"
    if final.exists():
        raise ExperimentError(f"{final} exists; delete it to export this step again")
    if is_keras:
        network = _whole_network(restored.built)
        rows = {"network": network.name, "compared": _write_keras(network, final)}
    else:
        served = ServedModel(restored.built, inputs, outputs)
        rows = {**served.describe(), "compared": write_export(served, final)}
    say(plain_table({**restored.describe(), **rows}), end="\n\n")
    say(f"exported to {restored.experiment.keep(final)}")


def _names(model: ModelProtocol, key: str) -> list[str]:
    found: list[str] | None = model.config.get(key)
    if not found:
        raise ConfigError(f'{key} is not set; give names of the model\'s mapping, such as {key}=["logits"]')
    return found


def write_export(served: ServedModel, final: Path) -> str:
    """Write a SavedModel if its outputs equal the model's, and return a summary of the comparison."""
    with appearing(final) as temporary:
        served.save(temporary)
        outcome = compare(served, temporary)
    return outcome


def _write_keras(network: keras.Model, final: Path) -> str:
    """Write a ``.keras`` file if it loads with equal weights, and return a summary of the comparison."""
    with appearing(final) as temporary:
        try:
            network.save(temporary)
            loaded = keras.models.load_model(temporary, compile=False)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ModelError(f"Keras cannot save and load the network {network.name}: {cause(error)}") from error
        pairs = list(zip(network.get_weights(), loaded.get_weights(), strict=True))
        if not all(np.array_equal(mine, theirs, equal_nan=True) for mine, theirs in pairs):
            raise ModelError(f"the network {network.name} has other weights after it was saved and loaded again")
    return f"{len(pairs)} arrays of weights, equal after loading"


def _whole_network(built: BuiltModel) -> keras.Model:
    """Return the Keras model that contains all weights of a model."""
    weights = {id(v.value) for layer in built.layers.layers.values() for v in layer.weights}
    of_build = {id(v) for v in built.variables.values() if v.trainable}
    for layer in built.layers.layers.values():
        if isinstance(layer, keras.Model) and weights | of_build <= {id(v.value) for v in layer.weights}:
            return layer
    raise ModelError(
        f"the network is not one Keras model: build() uses {shorten_list(list(built.layers.layers), 6) or 'no layer'}; "
        "put all layers into one keras.Sequential or keras.Model, or export a SavedModel"
    )
