"""The data of an action: a dataset of the model, or new examples from files."""

from __future__ import annotations

import csv
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import tensorflow as tf

from prototrain import readers
from prototrain.data.batches import check_dataset
from prototrain.errors import DataError
from prototrain.model.built import BuiltModel
from prototrain.model.evaluation import require_end
from prototrain.system.tracebacks import cause


@dataclass
class Data:
    """A dataset of batches, named after the dataset or its files; `files` has the path of each image."""

    name: str
    dataset: tf.data.Dataset
    files: list[str] = field(default_factory=list)


def add_data(parser: ArgumentParser) -> None:
    """Add the arguments ``--dataset`` and ``--files`` for `data_of`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--dataset", metavar="tst|vld|trn", help="default: tst, or vld if there is no tst")
    formats = "CSV, JSON lines, .npz, images or directories of them"
    text = f"new data, for the model's function serving(inputs): {formats}"
    group.add_argument("--files", metavar="FILE", nargs="+", type=Path, help=text)


def data_of(built: BuiltModel, args: Namespace) -> Data:
    """Return the data that the arguments of `add_data` name; the model's `serving` converts batches from files."""
    if args.files:
        return _new_data(built, args.files)
    datasets = built.datasets
    name = args.dataset or next((name for name in ("tst", "vld") if name in datasets), "tst")
    if name not in datasets:
        raise DataError(f"datasets() gives no {name!r}; name one of {', '.join(datasets)} with --dataset")
    require_end(name, datasets[name])
    return Data(name, datasets[name])


def _new_data(built: BuiltModel, files: Sequence[Path]) -> Data:
    serving = getattr(built.model, "serving", None)
    if serving is None:
        raise DataError(
            "--files: give the model a function serving(inputs), which turns a batch of the files into one for build()"
        )
    for path in files:
        if not path.exists():
            raise DataError(f"--files: there is no {path}")
    kinds = {".images" if path.is_dir() else path.suffix.lower() for path in files}
    kinds = {".images" if kind in readers.IMAGE_EXTENSIONS else kind for kind in kinds}
    read = _EXAMPLES.get(kinds.pop()) if len(kinds) == 1 else None
    if read is None:
        raise DataError("--files: name files of one format, .csv, .jsonl or .npz, or images or directories of images")
    images = _images(files) if read is _image_examples else []
    dataset = read(images or [str(path) for path in files]).batch(built.config["model.batch_size"])
    try:
        served = dataset.map(serving)
        next(iter(served.take(1)), None)
    except Exception as error:  # the user's function may raise anything
        behind_frames = str(error).strip().splitlines()[-1:]  # skips the stack frames that AutoGraph adds
        what = cause(error) if isinstance(error, tf.errors.OpError) else "".join(behind_frames).strip()
        there = ", ".join(f"{name} ({spec.dtype.name})" for name, spec in dataset.element_spec.items())
        raise DataError(f"serving() failed: {what}; the files have {there}") from error
    return Data(", ".join(map(str, files)), check_dataset(served, "files"), images)


def _images(paths: Sequence[Path]) -> list[str]:
    """Return the given images, and the images in the given directories and their direct subdirectories."""
    found: list[str] = []
    for path in paths:
        inside = [path, *sorted(filter(Path.is_dir, path.iterdir()))] if path.is_dir() else []
        found += [file for directory in inside for file in readers.image_files(directory)] if inside else [str(path)]
    if not found:
        raise DataError(f"--files: there are no images in {', '.join(map(str, paths))}")
    return found


def _image_examples(files: list[str]) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(files).map(lambda file: {"file": file, "content": tf.io.read_file(file)})


def _csv_examples(files: list[str]) -> tf.data.Dataset:
    """Return the rows of CSV files as strings; the first line names the columns."""
    with open(files[0], encoding="utf-8-sig", errors="replace", newline="") as file:
        names = next(csv.reader(file), [])
    if not names:
        raise DataError(f"{files[0]}: has no first line with the names of the columns")
    return readers.csv(files, features={name: (tf.string, []) for name in names})


def _json_examples(files: list[str]) -> tf.data.Dataset:
    """Return the rows of JSON lines files, with the dtypes and shapes of the first row."""
    with open(files[0], encoding="utf-8-sig", errors="replace") as lines:
        try:
            row = json.loads(next(filter(str.strip, lines), "{}"))
            arrays = {name: np.asarray(value) for name, value in row.items()}
        except (ValueError, AttributeError):
            arrays = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "biufU":
            raise DataError(f"{files[0]}: {name!r} must be a number, a text, or a list of them of one length")
    features: dict[str, Any] = {
        name: (tf.string if array.dtype.kind == "U" else array.dtype, array.shape) for name, array in arrays.items()
    }
    return readers.json_lines(files, features=features or {"": (tf.int64, [])})  # the reader reports what is wrong


def _npz_examples(files: list[str]) -> tf.data.Dataset:
    """Return the rows of .npz files, whose arrays must have one length."""
    found = None
    for file in files:
        try:
            with np.load(file, allow_pickle=False) as content:
                dataset = tf.data.Dataset.from_tensor_slices({name: content[name] for name in content.files})
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise DataError(f"{file}: is no .npz of arrays of one length ({error})") from error
        found = dataset if found is None else found.concatenate(dataset)
    return found


_EXAMPLES = {".csv": _csv_examples, ".jsonl": _json_examples, ".npz": _npz_examples, ".images": _image_examples}
