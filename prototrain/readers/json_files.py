"""A reader of JSON lines files, with one object per line."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import Shuffle
from prototrain.readers.tables import Arrays, Features, arrays_of, columns_of, dataset_of, short
from prototrain.system.files import PathLike


def json_lines(
    paths: PathLike | Iterable[PathLike],
    *,
    features: Features,
    shuffle: Shuffle = None,
) -> tf.data.Dataset:
    """Read files that hold one JSON object per line.

    The files are parsed and checked completely when this is called, and kept in memory. Empty lines and members that
    are not in `features` are skipped.

    Args:
        paths: one or more files, read in this order; URLs are downloaded.
        features: name -> (dtype, shape) of every feature, e.g. `{"example": ("uint8", [64]), "label": ("int32", [])}`.
            The dtype is an integer or float type, `bool` or `string`; the shape is fixed, `[]` for a scalar.
        shuffle: "index" returns all examples in a new random order in each pass.

    Returns:
        A dataset of dictionaries name -> tensor of that dtype and shape, one per line, in the order of the files.

    Raises:
        DataError: a file cannot be read or is empty, or a line is not a JSON object or does not fit the features.
        StorageError: a file at a URL cannot be downloaded.
    """
    columns = columns_of(features)
    names = [column.name for column in columns]

    def parse(line: bytes) -> list[Any]:
        try:
            item = orjson.loads(line)
        except ValueError as error:
            raise DataError(f"not JSON ({error})") from None
        if not isinstance(item, dict):
            raise DataError(f"not a JSON object: {short(item)}")
        try:
            return [item[name] for name in names]
        except KeyError as error:
            raise DataError(f"{error.args[0]!r} is missing") from None

    def read(name: str, path: str) -> Iterator[Arrays]:
        with open(path, "rb") as file:
            lines = (line.removeprefix(BOM_UTF8) for line in file)
            filled = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
            yield from arrays_of(name, filled, columns, parse)

    return dataset_of(paths, columns, read, shuffle=shuffle)
