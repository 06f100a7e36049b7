"""Writing the SavedModel of a `model_fn`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.actions.export import write_export
from prototrain.actions.saved_model import ServedModel
from prototrain.errors import ConfigError, ModelError
from prototrain.estimator.export import ServingInputReceiver
from prototrain.estimator.program import calling
from prototrain.estimator.trainers import BuiltProgram
from prototrain.experiment import Experiment
from prototrain.system.terminal import say
from prototrain.system.tracebacks import first_line
from prototrain.system.urls import local_path, url_of


def receiver_of(serving_input_receiver_fn: Callable[[], Any]) -> ServingInputReceiver:
    """Ask for what an export is fed with.

    Raises:
        ModelError: it is something else.
    """
    receiver = calling(serving_input_receiver_fn, "serving_input_receiver_fn")()
    if not isinstance(receiver, ServingInputReceiver):
        raise ModelError(
            "serving_input_receiver_fn must return a prototrain.estimator.ServingInputReceiver, not "
            f"{type(receiver).__name__}"
        )
    return receiver


@contextmanager
def trying(receiver: ServingInputReceiver) -> Iterator[None]:
    """Context in which a model that cannot take the batch of zeros raises a `ModelError` that says what to do."""
    try:
        yield
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        if receiver.example is not None:
            raise
        specs = ", ".join(f"{name} {tuple(spec.shape)}" for name, spec in receiver.receiver_tensors.items())
        raise ModelError(
            f"the model cannot take the zeros that its export is tried on ({specs}, where an open length is 1): "
            f"{first_line(error)}; give a batch that it can take, ServingInputReceiver(..., example={{name: array}})"
        ) from error


def export_built(built: BuiltProgram, receiver: ServingInputReceiver, base: str | Path, experiment: Experiment) -> str:
    """Write a SavedModel; see `Estimator.export_saved_model`."""
    if url_of(base) is not None:
        raise ConfigError(f"export_saved_model: {base} is a URL; give a directory, such as one below the model_dir")
    with trying(receiver):
        built.build(built.data.first_batch, False)  # which says what its signatures are
        served = ServedModel(built, list(receiver.receiver_tensors), built.model.signatures)
    seconds = int(time.time())  # which those that serve a model expect as the name
    while (final := local_path(base) / str(seconds)).exists():
        seconds += 1
    compared = write_export(served, final)
    if final.absolute().is_relative_to(experiment.directory):
        experiment.keep(final)
    say(f"exported step {built.step} to {final}, compared {compared}")
    return str(final)
