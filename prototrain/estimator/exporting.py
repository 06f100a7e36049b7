"""Writing the SavedModel of a `model_fn`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.actions.export import write_export
from prototrain.actions.saved_model import ServedModel
from prototrain.errors import ModelError
from prototrain.estimator.export import ServingInputReceiver
from prototrain.estimator.program import calling
from prototrain.estimator.trainers import BuiltProgram
from prototrain.experiment import Experiment
from prototrain.system.storage import Storage
from prototrain.system.terminal import say
from prototrain.system.tracebacks import first_line
from prototrain.system.urls import local_path, url_of
from prototrain.system.waiting import announcing

_GRAPH = "saved_model.pb"  # without it, what there is of a SavedModel is nothing that anybody loads


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
    """Say what to do where a model cannot take the batch that it is tried on.

    Raises:
        ModelError: so it is.
    """
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


def export_built(
    built: BuiltProgram,
    receiver: ServingInputReceiver,
    base: str | Path,
    experiment: Experiment,
    assets_extra: Mapping[str, str | Path] | None = None,
) -> str:
    """Write a SavedModel, into the directory of a run, another one, or to a URL; see `Estimator.export_saved_model`."""
    with trying(receiver):
        built.build(built.data.first_batch, False)  # which says what its signatures are
        served = ServedModel(built, list(receiver.receiver_tensors), built.model.signatures)
    extra = {f"assets.extra/{name}": Path(path) for name, path in (assets_extra or {}).items()}
    write = partial(write_export, served, extra=extra)
    url = url_of(base)
    place, compared = _write_here(local_path(base), experiment, write) if url is None else _write_there(url, write)
    say(f"exported step {built.step} to {place}, compared {compared}")
    return place


def _write_here(base: Path, experiment: Experiment, write: Callable[[Path], str]) -> tuple[str, str]:
    final = _unused(lambda name: (base / name).exists(), base)
    compared = write(final)
    if final.absolute().is_relative_to(experiment.directory):
        experiment.keep(final)
    return str(final), compared


def _write_there(url: str, write: Callable[[Path], str]) -> tuple[str, str]:
    storage = Storage(url)
    with tempfile.TemporaryDirectory() as scratch:
        final = _unused(lambda name: storage.find(f"{name}/{_GRAPH}") is not None, Path(scratch))
        compared = write(final)
        files = {path.relative_to(scratch).as_posix(): path for path in final.rglob("*") if path.is_file()}
        graph = f"{final.name}/{_GRAPH}"
        with announcing(f"uploading to {url}/{final.name}"):
            storage.upload({name: path for name, path in files.items() if name != graph})
            storage.upload({graph: files[graph]})
    return f"{url}/{final.name}", compared


def _unused(is_used: Callable[[str], bool], base: Path) -> Path:
    """A directory that is named by the time in seconds, as those that serve a model expect."""
    seconds = int(time.time())
    while is_used(str(seconds)):
        seconds += 1
    return base / str(seconds)
