"""Where weights can be taken from: arrays, a .npz, a Keras .h5, a TensorFlow checkpoint, a checkpoint of a run."""

from __future__ import annotations

import glob
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from prototrain.checkpoint.bundle import BUNDLE, read_bundle
from prototrain.checkpoint.checkpoints import Checkpoints
from prototrain.checkpoint.files import META, verify
from prototrain.errors import CheckpointError
from prototrain.experiment import STEP
from prototrain.experiment.fetching import fetched
from prototrain.private_api.graphs import names_in_checkpoint
from prototrain.system.contained import special
from prototrain.system.tracebacks import first_line

Source = str | Path | Mapping[str, Any]
"""A path, or arrays by name."""

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_FILE_OF_BUNDLE = re.compile(r"(.+)\.(index|data-\d{5}-of-\d{5})")


def read_weights(source: Source) -> dict[str, np.ndarray[Any, Any]]:
    """Read all arrays of a source by name; a ``:0`` at the end of a name is left out.

    Args:
        source: arrays by name; or the path of a ``.npz``, of a Keras ``.h5``, of an experiment (its newest checkpoint),
            of one of its checkpoints, of a directory with a ``checkpoint`` file, or the prefix of a TensorFlow
            checkpoint. All but the last two may be URLs.

    Returns:
        the arrays. Those of a ``.weights.h5`` are called ``layer/0``, ``layer/1`` and so on: it says no more of them.

    Raises:
        CheckpointError: there is no such thing, or it is damaged.
    """
    if isinstance(source, Mapping):
        return {str(name).removesuffix(":0"): _array(name, value) for name, value in source.items()}
    try:
        path = fetched(source).expanduser()
        if path.is_dir() or path.suffix not in (".npz", ".npy", ".h5", ".hdf5", ".keras"):
            return _read_named(_bundle_prefix(path))
        if not path.exists():
            raise CheckpointError(f"there is no file {path} to take weights from")
        if (what := special(path.resolve())) is not None:  # which would be waited for
            raise CheckpointError(f"{path} is {what}, not a file")
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL in it
        raise CheckpointError(f"there is no checkpoint {str(source)[:80]!r}: {first_line(error)}") from error
    if path.suffix == ".npy":
        raise CheckpointError(f"{path} can hold weights as a pickle only, which may run anything; make a .npz of it")
    if path.suffix == ".keras":
        raise CheckpointError(f"{path} is a whole model: keras.models.load_model reads it in build()")
    read = _read_npz if path.suffix == ".npz" else _read_h5
    try:
        return {name.removesuffix(":0"): value for name, value in read(path).items()}
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"cannot read {path}: {first_line(error)}") from error


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value)
    if array.dtype == object:
        raise CheckpointError(f"the weights {name!r} must be an array of numbers, not {type(value).__name__}")
    return array


def _read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(path, allow_pickle=False) as file:  # whose checksums are verified as it is read
        return dict(file)


def _read_h5(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read what `save_weights` of Keras wrote, of any version. Only what lies in the file itself is read, no links."""
    datasets: dict[str, Any] = {}
    groups: dict[str, Any] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Group):
            groups[name] = item
        elif item.external or item.is_virtual:
            raise ValueError(f"{name} lies in another file")
        else:
            datasets[name] = item

    with h5py.File(path, "r") as file:
        note("", file)
        file.visititems(note)
        # Since Keras 3 the weights of a layer are numbered in `<path>/vars`, which has the layer's name.
        homes = {f"/{name}".removesuffix("/vars"): name for name in groups if f"/{name}".endswith("/vars")}
        named = {home: groups[name].attrs["name"] for home, name in homes.items() if "name" in groups[name].attrs}
        # Before Keras 3.6 it had not: then a layer is called by its class and a number.
        layers = {home: _text(name) for home, name in named.items()}
        layers = layers or {home: home.rpartition("/")[2] for home in homes}
        if layers:
            return {_by_layer(f"/{name}", layers): np.asarray(dataset) for name, dataset in datasets.items()}
        return {
            name: np.asarray(datasets[f"{home}/{name}".lstrip("/")])
            for home, group in groups.items()
            for name in map(_text, group.attrs.get("weight_names", ()))
        }


def _by_layer(name: str, layers: Mapping[str, str]) -> str:
    """``net/fc0/1`` for the dataset ``/layers/dense/vars/1``, by the names of the layers on the way to it."""
    home, _, index = name.rpartition("/vars/")
    parts = home.split("/")
    names = [layers.get("/".join(parts[: end + 1]), "") for end in range(len(parts))]
    return "/".join([*filter(None, names), index])


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bundle_prefix(path: Path) -> Path:
    """Where the bundle starts that is meant by `path`."""
    path = _newest_of_tensorflow(path)
    if (file := _FILE_OF_BUNDLE.fullmatch(path.name)) and path.is_file():
        path = path.with_name(file[1])
    for directory in (path / "checkpoints", path):
        if steps := Checkpoints(directory).steps():
            path = Checkpoints(directory).path(steps[-1])
            break
    # A prefix inside of a checkpoint stands for the whole of it, which has checksums.
    directory = path.parent if path.name == BUNDLE else path
    if directory.is_dir() and (STEP.fullmatch(directory.name) or (directory / META).is_file()):
        verify(directory)
        path = directory / BUNDLE
    if not path.with_name(path.name + ".index").is_file():
        raise CheckpointError(
            f"model.weights_load_path: there is no checkpoint at {path}; give an experiment's directory, one of its "
            "checkpoints/step-*, the prefix of a TensorFlow checkpoint, a .npz or a .weights.h5"
        )
    for part in path.parent.glob(f"{glob.escape(path.name)}.data-*"):
        if (what := special(part.resolve())) is not None:  # TensorFlow would wait for ever
            raise CheckpointError(f"model.weights_load_path: {part} is {what}, not a file")
    return path


def _newest_of_tensorflow(path: Path) -> Path:
    """The prefix that TensorFlow's file ``checkpoint`` names, beside that file, where `path` is it or its directory."""
    directory = path.parent if path.name == "checkpoint" else path
    if not (directory / "checkpoint").is_file() or (path / META).is_file():
        return path
    state = tf.train.get_checkpoint_state(str(directory))
    # It may have been written on another machine, so that only the name counts.
    return path if state is None else directory / Path(state.model_checkpoint_path).name


def _read_named(prefix: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read a bundle's tensors by the names of their variables.

    One that `tf.train.Checkpoint` wrote has paths through the saved objects as keys, and the names in a graph beside
    them.
    """
    saved: dict[str, Any] = read_bundle(prefix)
    if _OBJECT_GRAPH not in saved:
        return saved
    keys = names_in_checkpoint(saved.pop(_OBJECT_GRAPH))
    return {keys.get(key) or key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): value for key, value in saved.items()}
