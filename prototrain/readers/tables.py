"""Tables of examples on disk: made of slow files once, and read at any row from then on.

A table is a directory of the cache with a file for each column, of values one after the other. It appears whole or not
at all, and is named after the files that it is made of, their sizes and times included; one of files that have changed
is deleted when the new one is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from prototrain.errors import DataError
from prototrain.readers.columns import Arrays, Column
from prototrain.readers.paths import Files, stamp
from prototrain.system.files import sync, write_atomic
from prototrain.system.urls import cache_home
from prototrain.system.waiting import announcing

_VERSION = 1
_LENGTH = "length.json"


class Table:
    """A table that is there.

    Args:
        directory: its files.
        columns: what it was made with.

    Attributes:
        size: of all values, in bytes.
    """

    def __init__(self, directory: Path, columns: list[Column]) -> None:
        self._length = int(json.loads((directory / _LENGTH).read_bytes()))
        self._columns = columns
        self._values = [
            _mapped(directory / f"{number}.values", _value(column)) for number, column in _numbered(columns)
        ]
        self.size = sum(values.nbytes for values in self._values)
        self._ends = {
            number: _mapped(directory / f"{number}.ends", np.dtype(np.int64))
            for number, column in _numbered(columns)
            if column.is_text
        }

    def __len__(self) -> int:
        return self._length

    def take(self, rows: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """The values of some rows, column by column."""
        return [
            self._texts(number, rows) if column.is_text else self._numbers(number, rows)
            for number, column in _numbered(self._columns)
        ]

    def _numbers(self, number: int, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        shape = self._columns[number].shape
        if 0 in shape:
            return np.empty((len(rows), *shape), self._values[number].dtype)
        found: np.ndarray[Any, Any] = self._values[number].reshape((self._length, *shape))[rows]
        return found

    def _texts(self, number: int, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        shape, ends, values = self._columns[number].shape, self._ends[number], self._values[number]
        each = int(np.prod(shape, dtype=np.int64))
        wanted = (rows[:, None] * each + np.arange(each)).ravel()
        found = np.empty(len(wanted), object)
        stops, starts = ends[wanted].tolist(), np.where(wanted > 0, ends[wanted - 1], 0).tolist() if each else []
        found[:] = [values[start:stop].tobytes() for start, stop in zip(starts, stops, strict=True)]
        return found.reshape((len(rows), *shape))


def table_of(
    kind: str,
    files: Files,
    columns: list[Column],
    chunks: Callable[[], Iterator[Arrays]],
    settings: Any = None,
) -> Table:
    """The table of some files, which is made now unless it is there.

    Args:
        kind: of the files, in words.
        files: that it is made of.
        columns: of the table.
        chunks: reads the files; gives the columns of some rows at a time.
        settings: what else the content depends on.

    Raises:
        DataError: the files have no rows, or cannot be read, or there is no room for the table.
    """
    spec = [(column.name, column.dtype.name, column.shape) for column in columns]
    made_of = _digest([_VERSION, kind, [os.path.abspath(path) for _, path in files], spec, settings])
    state = _digest([stamp(path) for _, path in files])
    home = cache_home() / "tables"
    directory = home / f"{made_of}-{state}"
    if not (directory / _LENGTH).is_file():
        names = files[0][0] + (f" and {len(files) - 1} more" if len(files) > 1 else "")
        try:
            with announcing(f"making a table of {names} in {home}, to be read in any order"):
                _make(directory, columns, chunks())
        except OSError as error:
            raise DataError(
                f"{names}: the table for shuffling by index cannot be kept in {home} ({error.strerror}); "
                "PROTOTRAIN_CACHE names another place"
            ) from error
        for other in home.glob(f"{made_of}-*"):
            if other != directory:
                shutil.rmtree(other, ignore_errors=True)
    table = Table(directory, columns)
    if not len(table):
        raise DataError(f"{files[0][0]}: holds no examples")
    return table


def _make(directory: Path, columns: list[Column], chunks: Iterator[Arrays]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Not named after the process: several machines may share a cache, and in containers all processes are number 1.
    temporary = Path(tempfile.mkdtemp(prefix=f".tmp-{directory.name}-", dir=directory.parent))
    try:
        _write(temporary, columns, chunks)
        try:
            os.rename(temporary, directory)
        except OSError:
            if not (directory / _LENGTH).is_file():  # or another process was quicker
                raise
        sync(directory.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(directory: Path, columns: list[Column], chunks: Iterator[Arrays]) -> None:
    length = 0
    with ExitStack() as stack:

        def created(name: str) -> Any:
            return stack.enter_context((directory / name).open("wb"))

        values = [created(f"{number}.values") for number, _ in _numbered(columns)]
        ends = {number: created(f"{number}.ends") for number, column in _numbered(columns) if column.is_text}
        written = dict.fromkeys(ends, 0)
        for chunk in chunks:
            length += len(chunk[columns[0].name]) if columns else 0
            for number, column in _numbered(columns):
                array = chunk[column.name]
                if number in ends:
                    texts = array.ravel().tolist()
                    ended = written[number] + np.cumsum([len(text) for text in texts], dtype=np.int64)
                    ends[number].write(ended.tobytes())
                    values[number].write(b"".join(texts))
                    written[number] = int(ended[-1]) if texts else written[number]
                else:
                    values[number].write(np.ascontiguousarray(array, _value(column)).tobytes())
        for file in (*values, *ends.values()):
            file.flush()
            os.fsync(file.fileno())
    write_atomic(directory / _LENGTH, json.dumps(length))


def _value(column: Column) -> np.dtype[Any]:
    return np.dtype(np.uint8 if column.is_text else column.dtype.as_numpy_dtype)


def _mapped(path: Path, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


def _numbered(columns: list[Column]) -> list[tuple[int, Column]]:
    return list(enumerate(columns))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]
