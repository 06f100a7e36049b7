"""Examples from files, for predicting."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.data.batches import by_path, from_paths
from prototrain.errors import DataError

INPUT_SUFFIXES = (".jsonl", ".npz")


class FileBatches:
    """The examples of files, in batches within one file.

    Args:
        files: JSON lines, each an object, or ``.npz`` with an array for each name. Nested values are nested in JSON
            and have a path in an ``.npz``, ``user/age``.
        size: the number of examples in a batch.
        spec: of a training batch; other names may have any type.

    Attributes:
        element_spec: the names in the first file.

    Raises:
        DataError: a file cannot be read, is empty, or does not fit the specification.
    """

    def __init__(self, files: Sequence[Path], size: int, spec: Mapping[str, Any]) -> None:
        self._files = files
        self._size = size
        self._spec = spec
        self._of = by_path(spec)
        first = next(iter(self))
        self.element_spec = dict.fromkeys(first)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for file in self._files:
            try:
                yield from self._arrays(file) if file.suffix == ".npz" else self._lines(file)
            except OSError as error:
                raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error

    def _lines(self, file: Path) -> Iterator[dict[str, Any]]:
        number = 0
        with open(file, "rb") as lines:
            while block := list(islice(lines, self._size)):
                where = f"{file}, lines {number + 1} to {number + len(block)}"
                number += len(block)
                rows = [_parsed(line, where) for line in block if line.strip()]
                if rows:
                    yield self._batch({path: [row.get(path) for row in rows] for path in rows[0]}, where)
        if not number:
            raise DataError(f"{file}: holds no examples; it must have one JSON object per line")

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
        raise DataError(f"{what} is sparse in a training batch; predict for a dataset in place of files")
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
