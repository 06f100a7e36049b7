"""New data for a trained model: examples from files that the run has not seen.

A model's own function `serving(inputs)` prepares them, if it has one. Otherwise files of the format that `datasets()`
reads take the place of its files, and go through all that `datasets()` does to its examples. Other files must have the
names of a training batch.
"""

from __future__ import annotations

import csv
import json
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.data.batches import by_path, check_dataset, from_paths
from prototrain.data.rule import draws
from prototrain.data.shares import Share
from prototrain.data.stages import stages
from prototrain.errors import DataError
from prototrain.model.built import BuiltModel, datasets_of
from prototrain.readers import IMAGE_EXTENSIONS, image_files
from prototrain.readers.paths import READER, OtherFiles, replaced
from prototrain.system.wording import some_of

FORMATS = {".csv": "csv", ".jsonl": "json", ".npz": "npz"} | dict.fromkeys(IMAGE_EXTENSIONS, "images")


@dataclass
class NewData:
    """Examples from files.

    Attributes:
        dataset: of batches.
        how: how they are prepared, in words.
        rows: how many there are, if they go through `datasets()`, which may drop some.
        files: the name of each image; empty for other data.
    """

    dataset: tf.data.Dataset
    how: str
    rows: int | None = None
    files: list[str] = field(default_factory=list)

    def check(self, examples: int) -> None:
        """Check, at the end, that no example was dropped.

        Raises:
            DataError: one was.
        """
        if self.rows not in (None, examples):
            raise DataError(
                f"datasets() gives {examples:,} of the {self.rows:,} examples in the files, so it splits, filters or "
                "batches them with drop_remainder=True; give the model a function serving(inputs)"
            )


def add_files(parser: ArgumentParser, group: Any) -> None:
    """Declare ``--files`` in a group of alternatives, and ``--without``."""
    group.add_argument(
        "--files",
        metavar="FILE",
        nargs="+",
        type=Path,
        help=f"new data: files ({', '.join(FORMATS)}) or directories of images",
    )
    parser.add_argument(
        "--without", metavar="NAME,...", default="", help="columns that the files do not have, such as the labels"
    )


def new_data(built: BuiltModel, files: Sequence[Path], without: str = "") -> NewData:
    """Read files for a model.

    Args:
        built: the model.
        files: all of one format.
        without: names with commas between them, of columns that the files do not have; zeros take their place.

    Raises:
        DataError: a file cannot be read, is empty, or is not what the model needs.
    """
    kind = _format(files)
    missing = {name.strip() for name in without.split(",") if name.strip()}
    serving = getattr(built.model, "serving", None)
    if serving is None and (found := _source(built, kind)) is not None:
        return _through_datasets(built, *found, files, missing)
    size = built.config["model.batch_size"]
    images = _images(files) if kind == "images" else []
    batches = FileBatches(images or files, size, {} if serving is not None else built.element_spec)
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=batches.spec)
    how = "named as in a training batch"
    if serving is not None:
        dataset, how = check_dataset(dataset.map(serving), "files"), "serving()"
    return NewData(dataset, how, files=[str(path) for path in images])


def _format(files: Sequence[Path]) -> str:
    for path in files:
        if not path.exists():
            raise DataError(f"--files: there is no {path}")
    kinds = {"images" if path.is_dir() else FORMATS.get(path.suffix.lower()) for path in files}
    if None in kinds or len(kinds) > 1:
        raise DataError(
            f"--files: name files of one format, that ends in {', '.join(FORMATS)}, or directories of images"
        )
    return str(kinds.pop())


def _images(paths: Sequence[Path]) -> list[Path]:
    """The images among the paths and in directories, also a level below."""
    found: list[str] = []
    for path in paths:
        inside = [path, *sorted(filter(Path.is_dir, path.iterdir()))] if path.is_dir() else []
        found += [file for directory in inside for file in image_files(directory)] if inside else [str(path)]
    if not found:
        raise DataError(f"--files: there are no images in {some_of([str(path) for path in paths])}")
    return list(map(Path, found))


# -- through datasets() -----------------------------------------------------------------------------------------------


def _source(built: BuiltModel, kind: str) -> tuple[str, tuple[str, ...]] | None:
    """The dataset whose examples come from one reader of a format, in a fixed order, and that reader's files.

    A reader that other datasets have as well does not count: what `datasets()` computes from training data, such as a
    mean, must not be computed from the new data.

    Returns:
        its name and the files, or None if no dataset comes from a reader of this format.

    Raises:
        DataError: there are readers of this format, and none fits.
    """
    read = {name: _readers(dataset) for name, dataset in built.datasets.items()}
    for name in ("tst", "vld"):
        if name not in read or len(read[name]) != 1 or any(map(draws, stages(built.datasets[name]))):
            continue
        ((found, paths),) = read[name]
        others = {path for other, readers in read.items() if other != name for reader in readers for path in reader[1]}
        if found == kind and not others & set(paths):
            return name, paths
    if kind == "images" or any(found == kind for readers in read.values() for found, _ in readers):
        raise DataError(
            f"--files: new {kind} cannot go through datasets(): 'tst' or 'vld' must come from one reader of {kind}, in "
            "a fixed order, of files that no other dataset reads; or give the model a function serving(inputs)"
        )
    return None


def _readers(dataset: tf.data.Dataset) -> list[tuple[str, tuple[str, ...]]]:
    return [getattr(stage, READER) for stage in stages(dataset) if hasattr(stage, READER)]


def _through_datasets(
    built: BuiltModel, name: str, paths: tuple[str, ...], files: Sequence[Path], without: set[str]
) -> NewData:
    others = OtherFiles(paths, [str(path) for path in files], without)
    with replaced(others):
        dataset = check_dataset(datasets_of(built.model, Share())[name], name)
    return NewData(dataset, f"as {name!r} in datasets()", others.rows, others.images)


# -- batches of files -------------------------------------------------------------------------------------------------


class FileBatches:
    """The examples of files, in batches within one file.

    Args:
        files: CSV with a line of names; JSON lines, each an object; ``.npz`` with an array for each name; or images,
            which are given as "file" and "content". Nested values are nested in JSON, elsewhere they have a path,
            ``user/age``.
        size: the number of examples in a batch.
        spec: of a training batch, whose types values get; other names have the type of the file, text in CSV.

    Attributes:
        spec: of a batch, known from the first one.

    Raises:
        DataError: a file cannot be read, is empty, or does not fit the specification.
    """

    def __init__(self, files: Sequence[Path], size: int, spec: Mapping[str, Any]) -> None:
        self._files = files
        self._size = size
        self._spec = spec
        self._of = by_path(spec)
        self.spec = tf.nest.map_structure(_open_spec, next(iter(self)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._files[0].suffix.lower() in IMAGE_EXTENSIONS:
            for start in range(0, len(self._files), self._size):
                files = self._files[start : start + self._size]
                yield self._batch({"file": list(map(str, files)), "content": list(map(_content, files))}, "images")
            return
        for file in self._files:
            read = {".npz": self._arrays, ".csv": self._fields}.get(file.suffix.lower(), self._lines)
            try:
                yield from read(file)
            except OSError as error:
                raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error

    def _lines(self, file: Path) -> Iterator[dict[str, Any]]:
        with open(file, "rb") as lines:
            for where, block in self._blocks(file, lines):
                rows = [_parsed(line, where) for line in block if line.strip()]
                if rows:
                    yield self._batch({path: [row.get(path) for row in rows] for path in rows[0]}, where)

    def _fields(self, file: Path) -> Iterator[dict[str, Any]]:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            rows = csv.reader(lines, strict=True)
            try:
                names = next(rows, [])
                for where, block in self._blocks(file, filter(None, rows)):
                    if any(len(row) != len(names) for row in block):
                        raise DataError(f"{where}: a row has not the {len(names)} fields that the first line names")
                    columns = dict(zip(names, map(list, zip(*block, strict=True)), strict=True))
                    yield self._batch(
                        {name: self._numbers(name, texts, where) for name, texts in columns.items()}, where
                    )
            except (csv.Error, UnicodeDecodeError) as error:
                raise DataError(f"{file}: not CSV ({error})") from None

    def _numbers(self, name: str, texts: list[str], where: str) -> Any:
        dtype = self._of[name].dtype if name in self._of else tf.string
        if dtype == tf.string:
            return texts
        try:
            return np.array(texts).astype(np.int64 if dtype.is_integer else np.float64)
        except ValueError as error:
            raise DataError(f"{where}: {name!r} is {dtype.name} in a training batch ({error})") from None

    def _blocks(self, file: Path, rows: Iterator[Any]) -> Iterator[tuple[str, list[Any]]]:
        """Rows, as many as a batch has, and where they are."""
        number = 0
        while block := list(islice(rows, self._size)):
            yield f"{file}, rows {number + 1} to {number + len(block)}", block
            number += len(block)
        if not number:
            raise DataError(f"{file}: holds no examples")

    def _arrays(self, file: Path) -> Iterator[dict[str, Any]]:
        try:
            with np.load(file, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
        except (ValueError, EOFError) as error:
            raise DataError(f"{file}: is no .npz of arrays ({error})") from error
        lengths = {name: len(array) if array.shape else None for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or not all(lengths.values()):
            raise DataError(f"{file}: must have arrays of one length; it has {lengths}")
        for start in range(0, next(iter(lengths.values())) or 0, self._size):
            yield self._batch({name: array[start : start + self._size] for name, array in arrays.items()}, str(file))

    def _batch(self, columns: Mapping[str, Any], where: str) -> dict[str, Any]:
        tensors = {path: _tensor(values, self._of.get(path), f"{where}: {path!r}") for path, values in columns.items()}
        return from_paths(tensors, self._spec)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error


def _open_spec(value: Any) -> Any:
    """The specification of a tensor with any number of examples."""
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec([None, *value.shape[1:]], value.dtype, value.ragged_rank, value.row_splits.dtype)
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    """The values of a line by their paths."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: one is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: one is not a JSON object")
    return dict(_flat(found, ""))


def _flat(found: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _tensor(values: Any, spec: Any, what: str) -> Any:
    """Convert values to the type of a training batch; a number that does not fit is an error, not another number."""
    if isinstance(spec, tf.SparseTensorSpec):
        raise DataError(f"{what} is sparse in a training batch; give the model a function serving(inputs)")
    if isinstance(values, list) and isinstance(values[0], bytes):  # the content of an image
        return tf.constant(values)
    try:
        if isinstance(spec, tf.RaggedTensorSpec):
            return tf.ragged.constant(values, spec.dtype, ragged_rank=spec.ragged_rank)
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what} is not of one shape ({error})") from None
    if array.dtype.kind == "O":
        raise DataError(f"{what} is missing in some examples, or of several types")
    dtype = tf.as_dtype(array.dtype) if spec is None else spec.dtype
    is_text = array.dtype.kind in "SU"
    if is_text != (dtype == tf.string):
        raise DataError(f"{what} is {array.dtype}, and in a training batch {dtype.name}")
    if is_text:
        return tf.constant(values if isinstance(values, list) else array)
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(dtype.as_numpy_dtype)
    same = np.isfinite(converted) == np.isfinite(array) if dtype.is_floating else converted == array
    if not same.all():
        raise DataError(f"{what}: {array[~same][0]} does not fit into {dtype.name}")
    return tf.constant(converted)
