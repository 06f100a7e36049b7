"""Loads weights from other runs and files, and exports weights."""

from __future__ import annotations

import io
import json
import re
import textwrap
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import tensorflow as tf

from prototrain.checkpoint.state import CALLBACK_PREFIX, describe_variable, not_finite
from prototrain.checkpoint.store import BUNDLE, META, Checkpoints, read_tensors, verify
from prototrain.errors import CheckpointError
from prototrain.experiment import STEP, Experiment
from prototrain.experiment.remote import fetched
from prototrain.system.files import write_atomic
from prototrain.system.terminal import plain_table
from prototrain.system.tracebacks import cause
from prototrain.tf_private import names_in_checkpoint

AVERAGES = f"{CALLBACK_PREFIX}ExponentialMovingAverage/"
"""The prefix of the variables with the averages of `ExponentialMovingAverage`."""

Names = Mapping[str, str] | Callable[[str], str | None]
"""Maps a name in a source to a name in the model; None skips the name."""
Source = str | Path | Mapping[str, Any]
"""A path, or arrays by name."""

_KINDS = ("loaded", "type converted", "excluded", "not in the checkpoint", "not in the model", "shape differs")
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def load_weights(
    variables: Mapping[str, tf.Variable],
    source: Source,
    *,
    prefix: str | None = None,
    ignore: Iterable[str] = (),
    names: Names | None = None,
    mismatch: Literal["skip", "error"] = "skip",
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> dict[str, list[str]]:
    """Load every variable that matches by name and shape; see `TowerTrainer.load_weights`.

    Floats of another precision are converted. `names` is applied before `prefix`; names that are missing from the dict
    stay the same. `prepare` is a function from the arrays of the source to the arrays to load.

    Returns:
        names by outcome: "loaded" (which includes those "type converted"), "excluded", "not in the checkpoint", "not in
        the model", "shape differs".

    Raises:
        CheckpointError: the source cannot be read or matches no variable, a shape differs although `mismatch` is
            "error", or a value is NaN; no variable has changed.
    """
    if mismatch not in ("skip", "error"):
        raise CheckpointError(f"load_weights: mismatch must be 'skip' or 'error', not {mismatch!r}")
    where = "the given arrays" if isinstance(source, Mapping) else str(source)
    read: dict[str, Any] = read_weights(source)
    read = read if prepare is None else prepare(read)
    report: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    saved = _renamed(read, names, prefix, report["excluded"], where)
    if not isinstance(source, Mapping) and str(source).endswith(".h5"):
        saved = _by_variable(saved, variables)
    try:
        patterns = [re.compile(pattern) for pattern in ([ignore] if isinstance(ignore, str) else ignore)]
    except re.error as error:
        raise CheckpointError(f"load_weights: ignore={error.pattern!r} is not a regular expression: {error}") from error
    for pattern in patterns:
        if not any(map(pattern.fullmatch, variables)):
            raise CheckpointError(f"load_weights: ignore={pattern.pattern!r} matches none of {_some(variables)}")
    values = {}
    for name, variable in variables.items():
        if any(pattern.fullmatch(name) for pattern in patterns):
            report["excluded"].append(name)
        elif name not in saved:
            report["not in the checkpoint"].append(name)
        elif not _fits(saved[name], variable):
            report["shape differs"].append(_difference(name, saved[name], variable))
        else:
            report["loaded"].append(name)
            values[name] = saved[name].astype(variable.dtype.as_numpy_dtype, copy=False)
            if values[name].dtype != saved[name].dtype:
                report["type converted"].append(_difference(name, saved[name], variable))
    for name in sorted(saved.keys() - variables.keys()):
        report["excluded" if name.startswith(("optimizer/", CALLBACK_PREFIX)) else "not in the model"].append(name)
    if mismatch == "error" and report["shape differs"]:
        raise CheckpointError(f"in {where}, shapes differ: {'; '.join(report['shape differs'])}")
    if not values:
        raise CheckpointError(
            f"nothing in {where} matches a variable of the model by name and shape; it has {_some(read)}, the model "
            f"has {_some(variables)}; map the names with load_weights(names=...)"
        )
    spoiled = [name for name in not_finite(values) if np.isnan(values[name]).any()]
    if spoiled:
        raise CheckpointError(
            f"in {where}, there are NaN values in {_some(spoiled)}; take a checkpoint of an earlier step"
        )
    for name, value in values.items():
        variables[name].assign(value)
    return report


def dump_weights(variables: Mapping[str, Any], path: str | Path) -> None:
    """Write variables to a ``.npz`` by name; see `TowerTrainer.dump_weights`."""
    path = Path(path).expanduser()
    if path.suffix != ".npz":
        raise CheckpointError(f"dump_weights: the path must end with .npz, got {path.name!r}")
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {name: np.asarray(tf.convert_to_tensor(value)) for name, value in variables.items()}
    np.savez(buffer, **arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {cause(error)}") from error


def load_report_table(report: Mapping[str, list[str]]) -> str:
    """Format the result of `load_weights` as a table."""
    return plain_table({f"{len(names)} {kind}": ", ".join(names) for kind, names in report.items() if names})


def _renamed(
    read: Mapping[str, Any], names: Names | None, prefix: str | None, left_out: list[str], where: str
) -> dict[str, Any]:
    """Rename the arrays of a source to the model's names."""
    if isinstance(names, Mapping) and (unknown := [name for name in names if name.removesuffix(":0") not in read]):
        raise CheckpointError(f"names: there is no {', '.join(unknown)} in {where}; it has {_some(read)}")
    found: dict[str, Any] = {}
    table = {} if names is None or callable(names) else {old.removesuffix(":0"): new for old, new in names.items()}
    for name, value in read.items():
        renamed = names(name) if callable(names) else table.get(name, name)
        if renamed is None:
            left_out.append(name)
            continue
        renamed = f"{prefix.rstrip('/')}/{renamed}" if prefix else renamed
        if renamed in found:
            raise CheckpointError(f"names: two arrays of {where} would be {renamed!r}, {name!r} is one of them")
        found[renamed] = value
    return found


def _fits(array: np.ndarray[Any, Any], variable: tf.Variable) -> bool:
    there, here = tf.as_dtype(array.dtype), tf.as_dtype(variable.dtype)
    alike = there == here or (there.is_floating and here.is_floating)
    return alike and list(array.shape) == list(variable.shape)


def _difference(name: str, array: np.ndarray[Any, Any], variable: tf.Variable) -> str:
    return f"{name}: {describe_variable(array)}, here {describe_variable(variable)}"


def _some(names: Iterable[str]) -> str:
    return textwrap.shorten(", ".join(names), 200, placeholder=" ...") or "nothing"


def averaged_weights(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the moving averages among a checkpoint's variables, by the names of their weights."""
    return {name.removeprefix(AVERAGES): value for name, value in saved.items() if name.startswith(AVERAGES)}


def read_weights(source: Source) -> dict[str, np.ndarray[Any, Any]]:
    """Read all arrays of a source by name, without a ``:0`` at the end.

    Args:
        source: arrays by name; or the path of a ``.npz``, a Keras ``.weights.h5``, an experiment (its newest
            checkpoint) or one of its checkpoints; or the prefix of a TensorFlow checkpoint. All but the last may be
            URLs.

    Raises:
        CheckpointError: the source does not exist, has an unsupported format, or is damaged.
    """
    if isinstance(source, Mapping):
        return {str(name).removesuffix(":0"): _array(name, value) for name, value in source.items()}
    try:
        path = fetched(source).expanduser()
        if path.is_dir() or path.suffix not in (".npz", ".npy", ".h5", ".keras"):
            return _read_named(_bundle_prefix(path))
        if not path.exists():
            raise CheckpointError(f"there is no weights file {path}")
    except (OSError, ValueError) as error:  # the name is too long or contains a NUL
        raise CheckpointError(f"there is no checkpoint {str(source)[:80]!r}: {cause(error)}") from error
    if path.suffix not in (".npz", ".h5"):
        raise CheckpointError(f"weights are not read from {path}; write them to a .npz or a .weights.h5")
    try:
        if path.suffix == ".h5":
            return _read_h5(path)
        with np.load(path, allow_pickle=False) as file:  # verifies checksums while reading
            return {name.removesuffix(":0"): value for name, value in file.items()}
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"cannot read {path}: {cause(error)}") from error


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value)
    if array.dtype == object:
        raise CheckpointError(f"the weights {name!r} must be an array of numbers, not {type(value).__name__}")
    return array


def _bundle_prefix(path: Path) -> Path:
    """Return the prefix of the bundle for a path that `read_weights` accepts."""
    for directory in (path / "checkpoints", path) if path.is_dir() else ():
        if steps := Checkpoints(directory).steps():
            path = Checkpoints(directory).path(steps[-1])
            break
    # A prefix inside a checkpoint is treated as the whole checkpoint, so that its checksums are verified.
    directory = path.parent if path.name == BUNDLE else path
    if directory.is_dir() and (STEP.fullmatch(directory.name) or (directory / META).is_file()):
        verify(directory)
        path = directory / BUNDLE
    if not path.with_name(path.name + ".index").is_file():
        raise CheckpointError(
            f"there are no weights to load: no checkpoint at {path}; give an experiment's directory, one of its "
            "checkpoints/step-*, the prefix of a TensorFlow checkpoint, a .npz or a .weights.h5"
        )
    return path


def _read_named(prefix: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read a bundle's tensors by the names of their variables."""
    # The keys in a `tf.train.Checkpoint` are paths through the saved objects; its object graph has the names.
    saved: dict[str, Any] = {name: tensor.numpy() for name, tensor in read_tensors(prefix).items()}
    if _OBJECT_GRAPH not in saved:
        return saved
    keys = names_in_checkpoint(saved.pop(_OBJECT_GRAPH))
    return {keys.get(key) or key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): value for key, value in saved.items()}


def best_checkpoint(source: Any) -> Path:
    """Return the directory of the checkpoint that `MinSaver` or `MaxSaver` kept in an `Experiment` or its path.

    Raises:
        CheckpointError: `source` is not an experiment, it has no best checkpoint or several, or the record of a best
            checkpoint is damaged.
    """
    experiment = Experiment(fetched(source)) if isinstance(source, str | Path) else source
    if not isinstance(experiment, Experiment) or not experiment.exists():
        raise CheckpointError(f"load_weights: checkpoint='best' needs an experiment, not {str(source)[:80]}")
    found = {}
    for path in sorted(path for mode in ("min", "max") for path in experiment.checkpoints.glob(f"{mode}-*.json")):
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            found[f"{note['stat']} at step {int(note['step'])}"] = int(note["step"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged; name a step with --checkpoint") from error
    if not found:
        raise CheckpointError(
            f"{experiment} has no best checkpoint: there was no MinSaver or MaxSaver in its callbacks"
        )
    if len(set(found.values())) > 1:
        raise CheckpointError(f"{experiment} has several best checkpoints: {', '.join(found)}; name one by its step")
    return Checkpoints(experiment.checkpoints).path(next(iter(found.values())))


def _read_h5(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays of a ``.weights.h5`` by name.

    The file does not name the weights of a layer, so they are numbered: ``layer/0``, ``layer/1`` and so on.
    """
    datasets: dict[str, Any] = {}
    layers: dict[str, str] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Group):
            if "name" in item.attrs:
                layers[f"/{name}".removesuffix("/vars")] = str(item.attrs["name"])
        elif item.external or item.is_virtual:
            raise ValueError(f"{name} is stored in another file")
        else:
            datasets[f"/{name}"] = item

    with h5py.File(path, "r") as file:
        file.visititems(note)
        if not layers:
            raise ValueError("it has no names of layers, which Keras 3.6 and later write")
        return {_by_layer(name, layers): np.asarray(dataset) for name, dataset in datasets.items()}


def _by_layer(name: str, layers: Mapping[str, str]) -> str:
    """Return the name of a dataset by layer names, such as ``net/fc0/1`` for ``/layers/dense/vars/1``."""
    home, _, index = name.rpartition("/vars/")
    parts = home.split("/")
    names = [layers.get("/".join(parts[: end + 1]), "") for end in range(len(parts))]
    return "/".join([*filter(None, names), index])


def _by_variable(saved: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the arrays of `_read_h5` to the names of a model's variables.

    Numbered arrays are matched by their order within the layer, with trainable variables first, as in Keras. The name
    of the network before the layer names may differ.
    """
    numbered: dict[str, str] = {}
    count: Counter[str] = Counter()
    for name in sorted(variables, key=lambda name: not variables[name].trainable):
        layer = name.rpartition("/")[0]
        numbered[f"{layer}/{count[layer]}"] = name
        count[layer] += 1
    tails = Counter(key.partition("/")[2] for key in numbered)
    known = {tail: name for key, name in numbered.items() if tails[tail := key.partition("/")[2]] == 1} | numbered
    return {known.get(name, known.get(name.partition("/")[2], name)): value for name, value in saved.items()}
