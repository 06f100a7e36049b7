"""Weights taken over from elsewhere, and written for elsewhere."""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from tabulate import tabulate

from prototrain.checkpoint.finite import NAN, in_words, not_finite
from prototrain.checkpoint.fit import describe_variable
from prototrain.checkpoint.state import OF_CALLBACKS
from prototrain.checkpoint.weight_sources import Source, read_weights
from prototrain.errors import CheckpointError
from prototrain.system.files import write_atomic
from prototrain.system.tracebacks import first_line

AVERAGES = f"{OF_CALLBACKS}ExponentialMovingAverage/"
"""What the names of the variables start with in which `ExponentialMovingAverage` keeps its averages."""

Names = Mapping[str, str] | Callable[[str], str | None]
"""From a name in a source to that in the model; None leaves it out."""

_KINDS = ("loaded", "type converted", "excluded", "not in the checkpoint", "not in the model", "shape differs")


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
    """Take over every variable that matches by name and shape. Floats of another precision are converted.

    Args:
        variables: the model's, by name.
        source: arrays by name, or a path; see `read_weights`.
        prefix: with a slash, stands in front of every name of the source.
        ignore: regular expressions for whole names of the model's variables, which keep their values.
        names: says what names of the source are in the model, ahead of the prefix; those that it does not have stay.
        mismatch: whether a variable of another shape is left as it is, or an error.
        prepare: from the arrays of the source to those that count.

    Returns:
        names by what became of them: "loaded" (among them those "type converted"), "excluded", "not in the checkpoint",
        "not in the model", "shape differs".

    Raises:
        CheckpointError: there is nothing readable, nothing in it matches, a shape differs that must not, or what
            matches is NaN; no variable has changed.
    """
    if mismatch not in ("skip", "error"):
        raise CheckpointError(f"load_weights: mismatch must be 'skip' or 'error', not {mismatch!r}")
    where = "the given arrays" if isinstance(source, Mapping) else str(source)
    read: dict[str, Any] = read_weights(source)
    read = read if prepare is None else prepare(read)
    report: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    saved = _renamed(read, names, prefix, report["excluded"], where)
    if not isinstance(source, Mapping) and str(source).endswith((".h5", ".hdf5")):
        saved = _of_layers(saved, variables)
    patterns = [_compiled(pattern) for pattern in ([ignore] if isinstance(ignore, str) else ignore)]
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
        report["excluded" if name.startswith(("optimizer/", OF_CALLBACKS)) else "not in the model"].append(name)
    if mismatch == "error" and report["shape differs"]:
        raise CheckpointError(f"in {where}, shapes differ: {'; '.join(report['shape differs'])}")
    if not values:
        raise CheckpointError(
            f"nothing in {where} matches a variable of the model by name and shape; it has {_some(read)}, the model "
            f"has {_some(variables)}; names= says which is which"
        )
    spoiled = {name: kind for name, kind in not_finite(values).items() if kind == NAN}
    if spoiled:
        raise CheckpointError(f"in {where}, {in_words(spoiled)}; take a checkpoint of an earlier step")
    for name, value in values.items():
        variables[name].assign(value)
    return report


def dump_weights(variables: Mapping[str, Any], path: str | Path) -> None:
    """Write variables into a ``.npz`` by name, whole or not at all; `load_weights` and `numpy.load` read it.

    Raises:
        CheckpointError: the name ends with something else, or the file cannot be written.
    """
    path = Path(path).expanduser()
    if path.suffix != ".npz":
        raise CheckpointError(f"dump_weights writes a .npz; {path.name!r} must end with that")
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {name: np.asarray(tf.convert_to_tensor(value)) for name, value in variables.items()}
    np.savez(buffer, **arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {first_line(error)}") from error


def load_report_table(report: Mapping[str, list[str]]) -> str:
    """The outcome of `load_weights` as a table."""
    rows = [(kind, len(names), textwrap.fill(", ".join(names), 80)) for kind, names in report.items() if names]
    return tabulate(rows, headers=["weights", "number", "variables"])


def _renamed(
    read: Mapping[str, Any], names: Names | None, prefix: str | None, left_out: list[str], where: str
) -> dict[str, Any]:
    """The arrays under the names that they have in the model."""
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


def _of_layers(saved: Mapping[str, Any], variables: Mapping[str, tf.Variable]) -> dict[str, Any]:
    """What Keras wrote under the names of this model's variables: with or without the name of the network that was
    saved, and by their order in the layer where they are numbered."""
    numbered: dict[str, str] = {}
    for is_trained in (True, False):  # as Keras counts them
        for name, variable in variables.items():
            home = name.rpartition("/")[0]
            if variable.trainable is is_trained:
                index = sum(key.rpartition("/")[0] == home for key in numbered)
                numbered[f"{home}/{index}"] = name
    known = {**numbered, **{name: name for name in variables}}
    tails = Counter(key.partition("/")[2] for key in known)  # without the name of a network that build() makes
    known = {key.partition("/")[2]: name for key, name in known.items() if tails[key.partition("/")[2]] == 1} | known
    found = {}
    for name, value in saved.items():
        candidates = (name, name.partition("/")[2])
        found[next((known[one] for one in candidates if one in known), name)] = value
    return found


def _fits(array: np.ndarray[Any, Any], variable: tf.Variable) -> bool:
    there, here = tf.as_dtype(array.dtype), tf.as_dtype(variable.dtype)
    alike = there == here or (there.is_floating and here.is_floating)
    return alike and list(array.shape) == list(variable.shape)


def _difference(name: str, array: np.ndarray[Any, Any], variable: tf.Variable) -> str:
    return f"{name}: {describe_variable(array)}, here {describe_variable(variable)}"


def _some(names: Iterable[str]) -> str:
    return textwrap.shorten(", ".join(names), 200, placeholder=" ...") or "nothing"


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise CheckpointError(f"ignore: {pattern!r} is not a regular expression: {error}") from error


def averaged_weights(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The moving averages that a checkpoint holds, under the names of the weights; empty if there are none.

    Args:
        saved: a checkpoint's variables by name.
    """
    return {name.removeprefix(AVERAGES): value for name, value in saved.items() if name.startswith(AVERAGES)}


def as_measured(saved: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint holds, with the moving averages in the weights' place, as held-out data has seen them."""
    return {**saved, **averaged_weights(saved)}
