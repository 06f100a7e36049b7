"""Predict for a whole dataset or for new data, into CSV, JSON lines or NumPy's .npz."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
import tensorflow as tf

from prototrain.actions.evaluate import choose_dataset
from prototrain.actions.new_data import NewData, add_files, new_data
from prototrain.actions.restore import add_checkpoint, restore
from prototrain.data.batches import at_path, batch_size, has_path
from prototrain.errors import ConfigError, DataError, ExperimentError, ModelError
from prototrain.model import ModelProtocol
from prototrain.predictor import DatasetPredictor
from prototrain.system.files import sync, write_atomic
from prototrain.system.tables import plain_table
from prototrain.system.terminal import say

SUFFIXES = (".csv", ".jsonl", ".npz")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the action takes."""
    add_checkpoint(parser)
    of = parser.add_mutually_exclusive_group()
    of.add_argument("--dataset", metavar="tst|vld|trn", help="which one; default: tst, or vld if there is no tst")
    add_files(parser, of)
    parser.add_argument(
        "--outputs",
        metavar="NAME,...",
        type=_names,
        help="names in what build() returns; default: the key actions.export.outputs",
    )
    parser.add_argument("--keep", metavar="NAME,...", type=_names, default=[], help="what of a batch to write as well")
    parser.add_argument(
        "--inputs",
        metavar="NAME,...",
        type=_names,
        help="what of a batch to give build(); default: what a training batch has as well",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=_path,
        help=f"ends in {' or '.join(SUFFIXES)}; default: analysis/<checkpoint>-predict-<dataset>.jsonl",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")


def run(model: ModelProtocol, args: Namespace) -> None:
    """Write one row for each example, in the order of the data.

    The file appears when it is complete. ``<file>.about.json`` says which checkpoint and data it is of.

    Args:
        model: a trained one.
        args: `checkpoint`, `dataset` or `files` and `without`, `outputs`, `keep`, `inputs`, `output`, `overwrite`.

    Raises:
        CheckpointError: there is no checkpoint that fits.
        ConfigError: neither the arguments nor the config name outputs.
        DataError: there is no such dataset, or it has no end, is empty or cannot be read.
        ExperimentError: the file exists, or cannot be written.
        ModelError: the model has no such output, or not one row of it for each example.
    """
    outputs = args.outputs or model.config.get("actions.export.outputs")
    if not outputs:
        raise ConfigError("predict: name the outputs, with --outputs NAME,... or the key actions.export.outputs")
    restored = restore(model, args.checkpoint)
    built = restored.built
    if args.files:
        data, label = ", ".join(map(str, args.files)), "files"
        new = new_data(built, args.files, args.without)
    else:
        data = label = choose_dataset(built.datasets, args.dataset)
        new = NewData(built.datasets[data], "")
    given = args.inputs or [
        name for name in built.element_spec if name in new.dataset.element_spec and name not in args.without.split(",")
    ]
    path = args.output or (
        restored.experiment.directory / "analysis" / f"{restored.checkpoint.path.name}-predict-{label}.jsonl"
    )
    if path.exists() and not args.overwrite:
        raise ExperimentError(f"{path} exists; name another file with -o, or replace it with --overwrite")
    rows = {
        **restored.describe(),
        "data": data,
        **({"prepared": new.how} if new.how else {}),
        "inputs": ", ".join(given),
        "outputs": ", ".join([*outputs, *args.keep]),
    }
    say(plain_table(rows), end="\n\n")
    predictor = DatasetPredictor(built.get_predictor(given, outputs), new.dataset)
    examples = not_finite = 0
    with built.stop, _written(path) as write:
        for batch, values in predictor.pairs():
            size = int(batch_size(batch))
            found = {name: _rows(name, value, size) for name, value in zip(outputs, values, strict=True)}
            named = {"file": np.array(new.files[examples : examples + size], object)} if new.files else {}
            kept = {name: _rows(name, _kept(batch, name), size) for name in args.keep}
            not_finite += write({**named, **found, **kept})
            examples += size
            built.stop.check()
        if not examples:
            raise DataError(f"there is nothing in {data} to predict for")
        new.check(examples)
    about = path.with_name(f"{path.name}.about.json")
    write_atomic(about, json.dumps({**rows, "run_id": restored.checkpoint.meta.get("run_id")}, indent=2) + "\n")
    where: Any = path
    if args.output is None:
        restored.experiment.keep(about)
        where = restored.experiment.keep(path)
    odd = f" ({not_finite:,} numbers are not finite)" if not_finite else ""
    say(f"written to {where}: {examples:,} examples{odd}")


def _kept(batch: Any, name: str) -> Any:
    if not has_path(batch, name):
        raise DataError(f"--keep: a batch has no {name!r}; it has: {', '.join(batch)}")
    value = at_path(batch, name)
    return value.numpy() if isinstance(value, tf.Tensor) else value


def _rows(name: str, value: Any, size: int) -> Any:
    """What one output has for each example."""
    if isinstance(value, tf.SparseTensor | dict | tuple):
        raise ModelError(f"{name!r} is no tensor with a row for each example, but a {type(value).__name__}")
    if not value.shape or value.shape[0] != size:
        raise ModelError(f"{name!r} of shape {tuple(value.shape)} has not one row for each of {size} examples")
    return value


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ArgumentTypeError(f"{text!r} must be names with commas between them, each once")
    return names


def _path(text: str) -> Path:
    if Path(text).suffix not in SUFFIXES:
        raise ArgumentTypeError(f"{text!r} must end in {' or '.join(SUFFIXES)}")
    return Path(text)


# -- files ------------------------------------------------------------------------------------------------------------


@contextmanager
def _written(path: Path) -> Iterator[Callable[[dict[str, Any]], int]]:
    """A function that writes the rows of a batch, and counts numbers that are not finite.

    The file appears at the end, if nothing fails.

    Raises:
        ExperimentError: it cannot be written.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            kinds: dict[str, type[_Lines] | type[_Arrays]] = {".csv": _Table, ".npz": _Arrays}
            rows = kinds.get(path.suffix, _Lines)(file)
            yield rows.write
            rows.finish()
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        raise ExperimentError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


class _Lines:
    """A line of JSON for each example; numbers that are not finite are null."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, rows: dict[str, Any]) -> int:
        arrays = {name: _array(name, value) for name, value in rows.items()}
        columns = [_listed(name, value) for name, value in arrays.items()]
        for values in zip(*columns, strict=True):
            row = dict(zip(rows, values, strict=True))
            self._file.write(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
        return sum(map(_not_finite, arrays.values()))

    def finish(self) -> None:
        pass


class _Table(_Lines):
    """A line of CSV for each example, with a line of names: a vector has a column for each of its numbers."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        self._names: list[str] = []

    def write(self, rows: dict[str, Any]) -> int:
        columns: dict[str, Any] = {}
        arrays = {name: _array(name, value) for name, value in rows.items()}
        for name, array in arrays.items():
            if isinstance(array, tf.RaggedTensor):
                raise ModelError(f"{name!r} is ragged, which CSV cannot hold; take .jsonl")
            flat = array.reshape(len(array), math.prod(array.shape[1:]))
            for index in range(flat.shape[1]):
                columns[name if array.ndim == 1 else f"{name}.{index}"] = _listed(name, flat[:, index])
        writer = csv.writer(self._text)
        if not self._names:
            self._names = list(columns)
            writer.writerow(self._names)
        if self._names != list(columns):
            raise ModelError("not all examples have the same number of values, which CSV cannot hold; take .jsonl")
        writer.writerows(zip(*columns.values(), strict=True))
        return sum(map(_not_finite, arrays.values()))

    def finish(self) -> None:
        self._text.detach()


class _Arrays:
    """An array for each name. All rows are in memory until the end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._found: dict[str, list[np.ndarray[Any, Any]]] = {}

    def write(self, rows: dict[str, Any]) -> int:
        not_finite = 0
        for name, value in rows.items():
            array = _array(name, value)
            if isinstance(array, tf.RaggedTensor):
                raise ModelError(f"{name!r} is ragged, which .npz cannot hold; take .jsonl")
            parts = self._found.setdefault(name, [])
            if parts and parts[0].shape[1:] != array.shape[1:]:
                raise ModelError(
                    f"{name!r} has rows of shape {parts[0].shape[1:]} and of shape {array.shape[1:]}, which do not fit "
                    "into one array; take .jsonl"
                )
            if array.dtype.kind == "O":
                if any(text.endswith(b"\0") for text in array.ravel()):
                    raise ModelError(f"{name!r} has texts that end in a NUL, which .npz cannot hold; take .jsonl")
                array = array.astype(bytes)
            parts.append(array)
            not_finite += _not_finite(array)
        return not_finite

    def finish(self) -> None:
        joined: dict[str, Any] = {name: np.concatenate(parts) for name, parts in self._found.items()}
        np.savez(self._file, **joined)


def _array(name: str, value: Any) -> Any:
    """An array of a type that NumPy itself knows, or a ragged tensor."""
    if isinstance(value, tf.RaggedTensor):
        return value
    array = np.ascontiguousarray(value)
    if array.dtype.kind == "c":
        raise ModelError(f"{name!r} is complex; have build() return its parts")
    return array.astype(np.float32) if array.dtype.kind not in "biufOSU" or array.dtype.name == "bfloat16" else array


def _listed(name: str, value: Any) -> Any:
    """Rows that `orjson` can write."""
    if isinstance(value, tf.RaggedTensor):
        value = value.to_list()
    elif value.dtype.kind in "OS":
        value = value.tolist()
    else:
        return value
    try:
        return [_decoded(row) for row in value]
    except UnicodeDecodeError as error:
        raise ModelError(f"{name!r} has bytes that are not UTF-8, which JSON cannot hold; take .npz") from error


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def _not_finite(value: Any) -> int:
    is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return int(np.count_nonzero(~np.isfinite(value))) if is_float else 0
