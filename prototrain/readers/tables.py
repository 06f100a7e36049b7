"""In-memory tables of features with fixed dtypes and shapes, checked while the files are read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import ABOUT, Shuffle, is_by_index, random_order
from prototrain.readers.paths import display_path, several
from prototrain.system.files import PathLike, local_path, url_of
from prototrain.system.storage import downloaded

Features: TypeAlias = Mapping[str, tuple[Any, Sequence[int]]]  # name -> (dtype or its name, shape)
Arrays: TypeAlias = list[np.ndarray[Any, Any]]  # one for each column, with the same number of rows

CHUNK = 4096  # number of rows to parse and check at once


class Column:
    """One feature as a column of a table: an integer or float type, `bool` or `string`, with a fixed shape."""

    def __init__(self, name: str, dtype: tf.DType, shape: Sequence[int]) -> None:
        self.name, self.dtype, self.shape = name, dtype, tuple(shape)
        self.is_text = self.dtype == tf.string
        self.is_number = self.dtype.is_integer or self.dtype.is_floating
        if any(size is None or size < 0 for size in self.shape):
            raise DataError(f"{name!r}: the shape {list(self.shape)} must be fixed; pad the values in the files")
        if not (self.is_number or self.is_text or self.dtype == tf.bool):
            raise DataError(f"{name!r}: files hold no {self.dtype.name}; use an integer, a floating, bool or string")
        number = int if self.dtype.is_integer else float
        self._types = (int, number) if self.is_number else (str if self.is_text else bool,)
        # Python's numbers compare with integers of any size; NumPy's do not.
        self._low, self._high = map(number, (self.dtype.min, self.dtype.max) if self.is_number else (0, 0))

    def array(self, values: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return an array of several rows, scalars or nested lists; raises a DataError for a bad value."""
        flat = list(values)
        for size in self.shape:
            for value in flat:
                if not isinstance(value, list):
                    raise DataError(f"{self.name!r}: {short(value)} is not a list of {size} values")
                if len(value) != size:
                    raise DataError(f"{self.name!r} has {len(value)} values where {size} are expected")
            flat = list(chain.from_iterable(flat))
        for value in flat:
            if type(value) not in self._types:  # an exact type: bool is a subclass of int
                raise DataError(f"{self.name!r}: {short(value)} is not of type {self.dtype.name}")
            if self.is_number and not self._low <= value <= self._high:
                why = f"does not fit into {self.dtype.name}" if math.isfinite(value) else "is not a finite number"
                raise DataError(f"{self.name!r}: {short(value)} {why}")
        return self.array_of_checked(flat, len(values))

    def array_of_checked(self, flat: Any, rows: int) -> np.ndarray[Any, Any]:
        """Return an array of checked values in row-major order; strings may be bytes."""
        if self.is_text:  # objects: a NumPy string drops trailing zero bytes
            found = np.empty(len(flat), object)
            found[:] = [value if isinstance(value, bytes) else value.encode() for value in flat]
        else:
            found = np.asarray(flat, dtype=self.dtype.as_numpy_dtype)
        return found.reshape((rows, *self.shape))


def columns_of(features: Features) -> list[Column]:
    """Return the columns of features; raises a DataError if a dtype is not supported."""
    require_features(features)
    return [Column(name, *dtype_and_shape(name, given)) for name, given in features.items()]


def require_features(features: Any) -> None:
    """Raise a DataError if `features` is not a dict with at least one name."""
    if not isinstance(features, Mapping) or not features:
        raise DataError("features must be a dict {name: (dtype, shape)} with at least one name")


def dtype_and_shape(name: str, given: Any) -> tuple[tf.DType, Sequence[int]]:
    """Return the dtype and the shape of a feature; raises a DataError if they are not given so."""
    dtype, shape = given if isinstance(given, tuple | list) and len(given) == 2 else (None, None)
    if not isinstance(shape, tuple | list | tf.TensorShape):
        raise DataError(f"features: {name!r} must be (dtype, shape), such as ('float32', [2]), not {given!r}")
    try:
        return tf.as_dtype(dtype), shape
    except TypeError as error:
        raise DataError(f"features: {name!r} has the unknown dtype {dtype!r}") from error


def arrays_of(
    file: str, rows: Iterator[tuple[int, Any]], columns: list[Column], parse: Callable[[Any], list[Any]]
) -> Iterator[Arrays]:
    """Yield arrays of the (line number, row) pairs of a file, `CHUNK` rows at a time.

    `parse` returns the values of a row, one for each column. A DataError names the first line that is wrong.
    """

    def arrays(chunk: list[tuple[int, Any]]) -> Arrays:
        values = zip(*[parse(row) for _, row in chunk], strict=True)
        return [column.array(each) for column, each in zip(columns, values, strict=True)]

    while chunk := list(islice(rows, CHUNK)):
        try:
            found = arrays(chunk)
        except DataError:
            for row in chunk:
                try:
                    arrays([row])
                except DataError as error:
                    raise DataError(f"{file}, line {row[0]}: {error}") from None
            raise
        yield found


def dataset_of(
    paths: PathLike | Iterable[PathLike],
    columns: list[Column],
    read: Callable[[str, str], Iterable[Arrays]],
    *,
    shuffle: Shuffle,
) -> tf.data.Dataset:
    """Read files into memory and return a dataset of their rows; raises a DataError for an empty or unreadable file.

    `read` returns the arrays of several rows at a time, from a file's name for messages and its local path.
    """
    by_index, files = is_by_index(shuffle), several(paths)
    local = [str(local_path(path) if (url := url_of(path)) is None else downloaded(url)) for path in files]
    if not local:
        raise DataError("there are no files to read: name one at least")
    chunks: list[Arrays] = []
    for name, path in zip(map(display_path, files), local, strict=True):
        before = len(chunks)
        try:
            chunks += read(name, path)
        except OSError as error:
            raise DataError(f"{name}: cannot be read ({error.strerror})") from error
        if len(chunks) == before:
            raise DataError(f"{name}: holds no examples")
    names = [column.name for column in columns]
    arrays = [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
    if not by_index:
        with tf.device("/cpu:0"):  # on a GPU, every batch would be copied back
            dataset = tf.data.Dataset.from_tensor_slices(dict(zip(names, arrays, strict=True)))
        setattr(dataset, ABOUT, ([], local))
        return dataset

    def take(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tf.numpy_function(
            lambda rows: [array[rows] for array in arrays], [rows], [column.dtype for column in columns]
        )
        shaped = [tf.ensure_shape(value, [None, *one.shape]) for value, one in zip(values, columns, strict=True)]
        return dict(zip(names, shaped, strict=True))

    length = len(arrays[0])
    size = sum(sum(map(len, array.ravel())) if array.dtype == object else array.nbytes for array in arrays)
    return random_order(length, take, about="rows", files=local, each=size / length)


def short(value: Any) -> str:
    """Return a value as JSON of at most 40 characters."""
    text = "a nested list" if isinstance(value, list | dict) else json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
