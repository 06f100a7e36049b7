"""Predict for a whole dataset or for new data, and write CSV, JSON lines or NumPy's .npz."""

from __future__ import annotations

import csv
import io
import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
import tensorflow as tf

from prototrain.actions.new_data import add_data, data_of
from prototrain.actions.restore import add_checkpoint, restore
from prototrain.data.batches import at_path, batch_size, has_path
from prototrain.errors import ConfigError, DataError, ExperimentError, ModelError
from prototrain.model import ModelProtocol
from prototrain.predictor import DatasetPredictor
from prototrain.system.files import appearing, write_atomic
from prototrain.system.terminal import plain_table, say

SUFFIXES = (".csv", ".jsonl", ".npz")
Columns = dict[str, Any]
"""The values of a batch by name, one row per example."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action's arguments to a parser."""
    add_checkpoint(parser)
    add_data(parser)
    outputs = "names in what build() returns; default: the key actions.export.outputs"
    parser.add_argument("--outputs", metavar="NAME,...", type=_names, help=outputs)
    parser.add_argument("--keep", metavar="NAME,...", type=_names, default=[], help="what of a batch to write as well")
    file = f"ends in {' or '.join(SUFFIXES)}; default: analysis/<checkpoint>-predict-<dataset or file>.jsonl"
    parser.add_argument("-o", "--output", metavar="FILE", type=_path, help=file)
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")


def run(model: ModelProtocol, args: Namespace) -> None:
    """Write the predictions, one row per example in the order of the data, and a file that records their origin."""
    outputs = args.outputs or model.config.get("actions.export.outputs")
    if not outputs:
        raise ConfigError("predict: name the outputs, with --outputs NAME,... or the key actions.export.outputs")
    restored = restore(model, args.checkpoint)
    built, experiment = restored.built, restored.experiment
    data = data_of(built, args)
    inputs = [name for name in built.element_spec if name in data.dataset.element_spec]
    if both := [name for name in args.keep if name in outputs]:
        raise ConfigError(f"--keep {both[0]}: an output of the model has this name, too; leave one of them out")
    label = "-".join(path.stem for path in args.files[:2]) if args.files else data.name
    path = args.output or experiment.directory / f"analysis/{restored.checkpoint.path.name}-predict-{label}.jsonl"
    if path.exists() and not args.overwrite:
        raise ExperimentError(f"{path} exists; name another file with -o, or replace it with --overwrite")
    names = {"data": data.name, "inputs": ", ".join(inputs), "outputs": ", ".join([*outputs, *args.keep])}
    rows = {**restored.describe(), **names}
    say(plain_table(rows), end="\n\n")
    predictor = DatasetPredictor(built.get_predictor(inputs, outputs), data.dataset)
    examples = 0

    def batches() -> Iterator[Columns]:
        nonlocal examples
        for batch, values in predictor.pairs():
            size = int(batch_size(batch))
            named = {"file": np.array(data.files[examples : examples + size], object)} if data.files else {}
            named |= zip(outputs, values, strict=True)
            for name in args.keep:
                if not has_path(batch, name):
                    raise DataError(f"--keep: a batch has no {name!r}; it has: {', '.join(batch)}")
                named[name] = at_path(batch, name)
            yield {name: _column(name, value, size, path.suffix) for name, value in named.items()}
            examples += size
            built.stop.check()
        if not examples:
            raise DataError(f"there is nothing in {data.name} to predict for")

    with built.stop, appearing(path) as temporary, open(temporary, "wb") as file:
        _WRITERS[path.suffix](file, batches())
    about = path.with_name(f"{path.name}.about.json")
    write_atomic(about, json.dumps({**rows, "run_id": restored.checkpoint.meta.get("run_id")}, indent=2) + "\n")
    if args.output is None:
        experiment.keep(about)
        path = experiment.keep(path)
    say(f"written to {path}: {examples:,} examples")


def _column(name: str, value: Any, size: int, suffix: str) -> Any:
    """Return an output with one row per example, as an array or, for JSON lines, a ragged tensor."""
    if isinstance(value, tf.RaggedTensor) and suffix == ".jsonl" and value.shape[0] == size:
        return value
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor | dict | tuple) or value.shape[:1] != (size,):
        what = f"a {type(value).__name__}{f' of shape {tuple(value.shape)}' if hasattr(value, 'shape') else ''}"
        raise ModelError(f"{name!r} is {what}, not a dense tensor with a row for each of {size} examples")
    array = np.ascontiguousarray(value)
    if array.dtype.kind == "c":
        raise ModelError(f"{name!r} is complex; have build() return its parts")
    return array if array.dtype.kind in "biufOSU" else array.astype(np.float32)  # such as bfloat16


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ArgumentTypeError(f"{text!r} must be names with commas between them, each once")
    return names


def _path(text: str) -> Path:
    if Path(text).suffix not in SUFFIXES:
        raise ArgumentTypeError(f"{text!r} must end in {' or '.join(SUFFIXES)}")
    return Path(text)


def _write_lines(file: IO[bytes], batches: Iterator[Columns]) -> None:
    """Write one line of JSON per example; non-finite numbers become null."""
    for columns in batches:
        listed = [_listed(name, value) for name, value in columns.items()]
        for values in zip(*listed, strict=True):
            row = dict(zip(columns, values, strict=True))
            file.write(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))


def _write_table(file: IO[bytes], batches: Iterator[Columns]) -> None:
    """Write a header and one line of CSV per example; a vector has one column per element."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer, names = csv.writer(text), None
    for columns in batches:
        found: Columns = {}
        for name, array in columns.items():
            for index, part in enumerate(array.reshape(len(array), -1).T):
                found[name if array.ndim == 1 else f"{name}.{index}"] = _listed(name, part)
        if names is None:
            names = list(found)
            writer.writerow(names)
        if names != list(found):
            raise ModelError("not all examples have the same number of values, which CSV cannot hold; take .jsonl")
        writer.writerows(zip(*found.values(), strict=True))
    text.detach()


def _write_arrays(file: IO[bytes], batches: Iterator[Columns]) -> None:
    """Write one array per name. All rows are kept in memory until the end."""
    parts: dict[str, list[Any]] = {}
    for columns in batches:
        for name, array in columns.items():
            parts.setdefault(name, []).append(array.astype(bytes) if array.dtype.kind == "O" else array)
    try:
        np.savez(file, **{name: np.concatenate(arrays) for name, arrays in parts.items()})  # type: ignore[arg-type]
    except ValueError as error:
        raise ModelError(f"the examples do not fit into one array; take .jsonl: {error}") from error


_WRITERS = {".csv": _write_table, ".jsonl": _write_lines, ".npz": _write_arrays}


def _listed(name: str, value: Any) -> Any:
    """Return rows that `orjson` can write, with bytes decoded."""
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
