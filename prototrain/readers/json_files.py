"""JSON lines: one object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Literal

import orjson
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.columns import (
    CHUNK,
    Arrays,
    Column,
    Features,
    columns_of,
    leaves,
    leaves_of_all,
    short,
)
from prototrain.readers.paths import PathLike, local_files, unreadable
from prototrain.readers.rows import dataset_of

_Lines = list[tuple[int, bytes]]  # with their numbers, from 1


def json_lines(
    paths: PathLike | Iterable[PathLike],
    *,
    features: Features,
    shuffle: Literal["index", False] | None = None,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads files that hold one JSON object per line.

    The files are parsed and checked whole, now, and kept in memory. Empty lines are skipped, and so are members of an
    object that `features` does not name.

    Args:
        paths: one file or several, read in the order given; URLs are downloaded.
        features: name -> (dtype, shape) of every feature, e.g. `{"example": ("uint8", [64]), "label": ("int32", [])}`.
            The dtype is an integer, a floating, `bool` or `string`; the shape is fixed, `[]` is a scalar.
        shuffle: "index" gives all examples in a new random order in each pass, from a table on disk in place of
            memory; it is made of the files once, and again when they have changed.
        seed: of that order; None for the run's.

    Returns:
        A dataset of dictionaries name -> tensor of that dtype and shape, one per line, in the order of the files.

    Raises:
        DataError: a file cannot be read or has no examples, or a line is not an object with these features: one is
            missing, has another shape or type, is not finite, or does not fit into its dtype.
        StorageError: a file at a URL cannot be downloaded.
    """
    columns, files = columns_of(features, "JSON holds"), local_files(paths)
    return dataset_of("json lines", files, columns, partial(_read, columns), shuffle=shuffle, seed=seed)


def _read(columns: list[Column], name: str, path: str) -> Iterator[Arrays]:
    is_empty = True
    try:
        with open(path, "rb") as file:
            filled = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
            while lines := list(islice(filled, CHUNK)):
                is_empty = False
                yield _parsed(lines, columns) or _parsed_one_by_one(name, lines, columns)
    except OSError as error:
        raise unreadable(path, error) from error
    if is_empty:
        raise DataError(f"{name}: holds no examples; it must have one JSON object per line")


def _parsed(lines: _Lines, columns: list[Column]) -> Arrays | None:
    """The features of good lines; None if anything is wrong, or may be."""
    try:
        items = [orjson.loads(line) for _, line in lines]
        found = {}
        for column in columns:
            values = leaves_of_all([item[column.name] for item in items], column.shape)
            if values is None or not column.all_good(values):
                return None
            found[column.name] = column.array(values, len(items))
    except (ValueError, LookupError, TypeError):
        return None
    return found


def _parsed_one_by_one(name: str, lines: _Lines, columns: list[Column]) -> Arrays:
    values: dict[str, list[Any]] = {column.name: [] for column in columns}
    for number, line in lines:
        try:
            item = _parse(line.removesuffix(b"\n"))
            for column in columns:
                if column.name not in item:
                    raise DataError(f"{column.name!r} is missing")
                found = leaves(column.name, item[column.name], column.shape)
                column.check(found)
                values[column.name] += found
        except DataError as error:
            raise DataError(f"{name}, line {number}: {error}") from None
    return {column.name: column.array(values[column.name], len(lines)) for column in columns}


def _parse(line: bytes) -> dict[str, Any]:
    try:
        item = json.loads(line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of thousands of digits; brackets nested as deep
        raise DataError(f"not JSON ({error})") from None
    if not isinstance(item, dict):
        raise DataError(f"not a JSON object: {short(item)}")
    return item
