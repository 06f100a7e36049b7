"""JSON lines: one object per line."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import Shuffle
from prototrain.readers.paths import PathLike
from prototrain.readers.tables import Arrays, Features, arrays_of, columns_of, dataset_of, short


def json_lines(
    paths: PathLike | Iterable[PathLike],
    *,
    features: Features,
    shuffle: Shuffle = None,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads files that hold one JSON object per line.

    The files are parsed and checked whole, now, and kept in memory. Empty lines are skipped, and so are members of an
    object that `features` does not name.

    Args:
        paths: one file or several, read in the order given; URLs are downloaded.
        features: name -> (dtype, shape) of every feature, e.g. `{"example": ("uint8", [64]), "label": ("int32", [])}`.
            The dtype is an integer, a floating, `bool` or `string`; the shape is fixed, `[]` is a scalar.
        shuffle: "index" gives all examples in a new random order in each pass.
        seed: of that order; None for the run's.

    Returns:
        A dataset of dictionaries name -> tensor of that dtype and shape, one per line, in the order of the files.

    Raises:
        DataError: a file cannot be read or has no examples, or a line is not an object with these features: one is
            missing, has another shape or type, is not finite, or does not fit into its dtype.
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

    return dataset_of(paths, columns, read, shuffle=shuffle, seed=seed)
