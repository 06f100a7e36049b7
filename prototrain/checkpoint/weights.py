"""Weights taken over from other checkpoints."""

from __future__ import annotations

import glob
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tabulate import tabulate
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from prototrain.checkpoint.checkpoints import Checkpoints
from prototrain.checkpoint.files import BUNDLE, META, first_line, read_bundle, verify
from prototrain.checkpoint.finite import NAN, in_words, not_finite
from prototrain.checkpoint.state import OF_CALLBACKS, describe_variable
from prototrain.errors import CheckpointError
from prototrain.experiment import STEP
from prototrain.system.contained import special

AVERAGES = f"{OF_CALLBACKS}ExponentialMovingAverage/"
"""What the names of the variables start with in which `ExponentialMovingAverage` keeps its averages."""

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_KINDS = ("loaded", "excluded", "not in the checkpoint", "not in the model", "shape differs")


def load_weights(
    variables: Mapping[str, tf.Variable],
    path: str | Path,
    *,
    exclude: str | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, list[str]]:
    """Take over every variable that matches by name and shape from a checkpoint, for fine-tuning.

    Args:
        variables: the model's, by name.
        path: an experiment's directory (its newest checkpoint), one of its checkpoints, or the prefix of a TensorFlow
            checkpoint.
        exclude: a regular expression; variables whose names it matches keep their values.
        names: what variables are called there, by their names here, where that is something else.

    Returns:
        names by what became of them: "loaded", "excluded", "not in the checkpoint", "not in the model",
        "shape differs".

    Raises:
        CheckpointError: there is no readable checkpoint, nothing in it matches, or what matches is NaN; no variable has
            changed.
    """
    try:
        prefix = _bundle_prefix(Path(path))
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL in it
        raise CheckpointError(f"there is no checkpoint {str(path)[:80]!r}: {first_line(error)}") from error
    saved = _read_named(prefix)
    there = {name: (names or {}).get(name, name) for name in variables}
    renamed = {name: other for name, other in there.items() if name != other}
    found = {name: saved[other] for name, other in renamed.items() if other in saved}
    saved = {name: value for name, value in saved.items() if name not in renamed} | found
    report: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for name, variable in variables.items():
        if exclude is not None and re.match(exclude, name):
            report["excluded"].append(name)
        elif name not in saved:
            report["not in the checkpoint"].append(name)
        elif describe_variable(variable) != describe_variable(saved[name]):
            report["shape differs"].append(
                f"{name}: {describe_variable(saved[name])}, here {describe_variable(variable)}"
            )
        else:
            report["loaded"].append(name)
    for name in sorted(saved.keys() - variables.keys() - set(there.values())):
        report["excluded" if name.startswith(("optimizer/", OF_CALLBACKS)) else "not in the model"].append(name)
    if not report["loaded"]:
        raise CheckpointError(f"nothing in {path} matches a variable of the model by name and shape")
    spoiled = {name: kind for name, kind in not_finite({n: saved[n] for n in report["loaded"]}).items() if kind == NAN}
    if spoiled:
        raise CheckpointError(f"in {path}, {in_words(spoiled)}; take a checkpoint of an earlier step")
    for name in report["loaded"]:
        variables[name].assign(saved[name])
    return report


def load_report_table(report: Mapping[str, list[str]]) -> str:
    """The outcome of `load_weights` as a table."""
    rows = [(kind, len(names), textwrap.fill(", ".join(names), 80)) for kind, names in report.items() if names]
    return tabulate(rows, headers=["weights", "number", "variables"])


def _bundle_prefix(path: Path) -> Path:
    """Where the bundle starts that `load_weights` means by `path`."""
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
            "checkpoints/step-*, or the prefix of a TensorFlow checkpoint"
        )
    for file in path.parent.glob(f"{glob.escape(path.name)}.data-*"):
        if (what := special(file.resolve())) is not None:  # TensorFlow would wait for ever
            raise CheckpointError(f"model.weights_load_path: {file} is {what}, not a file")
    return path


def _read_named(prefix: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read a bundle's tensors by the names of their variables.

    One that `tf.train.Checkpoint` wrote has paths through the saved objects as keys, and the names in a graph beside
    them.
    """
    saved: dict[str, Any] = read_bundle(prefix)
    if _OBJECT_GRAPH not in saved:
        return saved
    graph = TrackableObjectGraph.FromString(saved.pop(_OBJECT_GRAPH))
    keys = {entry.checkpoint_key: entry.full_name for node in graph.nodes for entry in node.attributes}
    return {keys.get(key) or key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): value for key, value in saved.items()}


def averaged_weights(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The moving averages that a checkpoint holds, under the names of the weights; empty if there are none.

    Args:
        saved: a checkpoint's variables by name.
    """
    return {name.removeprefix(AVERAGES): value for name, value in saved.items() if name.startswith(AVERAGES)}
