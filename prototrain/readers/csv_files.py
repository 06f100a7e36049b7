"""A reader of CSV files."""

from __future__ import annotations

import csv as csv_format
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import Shuffle
from prototrain.readers.tables import Arrays, Column, Features, arrays_of, columns_of, dataset_of
from prototrain.system.files import PathLike

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def csv(
    paths: PathLike | Iterable[PathLike],
    *,
    features: Features,
    columns: Mapping[str, Sequence[str]] | None = None,
    delimiter: str = ",",
    header: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    shuffle: Shuffle = None,
) -> tf.data.Dataset:
    """Read CSV files whose first line names the columns.

    The files are parsed and checked completely when this is called, and kept in memory. Empty lines and unused columns
    are skipped. Quoted fields may contain line breaks. The encoding is UTF-8.

    Args:
        paths, shuffle: see `json_lines`.
        features: name -> (dtype, shape) of every feature, e.g. `{"age": ("float32", []), "label": ("int32", [])}`.
            The dtype is an integer or float type, `bool` (true, false, 1, 0) or `string`; the shape is fixed.
        columns: for each feature that is not a scalar, the columns of its values in row-major order, e.g.
            `{"position": ["x", "y"]}`. By default, a scalar is read from the column with its name.
        delimiter: the character between two fields.
        header: the column names, for files without a line of names.
        defaults: the value of an empty field by feature, e.g. `{"age": 0.0, "city": "unknown"}`. Without a default, an
            empty field is an empty string, or an error for other dtypes.

    Returns:
        A dataset of dictionaries name -> tensor of that dtype and shape, one per row, in the order of the files.

    Raises:
        DataError: a file cannot be read, is empty or lacks a column, or a row does not fit the features.
        StorageError: a file at a URL cannot be downloaded.
    """
    made = columns_of(features)
    if texts := [f"columns: {name!r}" for name, given in (columns or {}).items() if isinstance(given, str)]:
        raise DataError(f"{texts[0]} needs a list of column names, not a text")
    if isinstance(header, str):
        raise DataError("header needs a list of column names, not a text")
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise DataError(f"delimiter must be one character, not {delimiter!r}")
    sources = {column.name: list((columns or {}).get(column.name, [column.name])) for column in made}
    for column in made:
        name, size = column.name, math.prod(column.shape)
        if len(sources[name]) != size:
            raise DataError(f"{name!r} has {size} values: name as many columns with columns={{{name!r}: [...]}}")
    if unknown := {*(columns or {}), *(defaults or {})} - sources.keys():
        raise DataError(f"there is no feature {min(unknown)!r}; there are: {', '.join(sources)}")
    # Each column of the file is parsed as a column of scalars, so that messages name it.
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in (defaults or {}).items()}
    fields, values = [], []
    for column in made:
        for name in sources[column.name]:
            fields.append(Column(name, column.dtype, ()))
            values.append(plain.get(column.name))  # None without a default

    def parse(row: dict[Any, Any]) -> list[Any]:
        if None in row or None in row.values():
            raise DataError("has too many or too few fields")
        texts = [row[field.name] for field in fields]
        return [
            _value(field, text) if text.strip() or empty is None else empty
            for field, text, empty in zip(fields, texts, values, strict=True)
        ]

    def read(file: str, path: str) -> Iterator[Arrays]:
        with open(path, encoding="utf-8-sig", newline="") as opened:
            reader = csv_format.DictReader(opened, header, delimiter=delimiter, strict=True)
            try:
                names = list(reader.fieldnames or [])
                if not names:
                    raise DataError(f"{file}: is empty, or begins with an empty line")
                for field in fields:
                    if names.count(field.name) != 1:
                        problem = "has several columns" if field.name in names else "has no column"
                        raise DataError(f"{file}: {problem} {field.name!r}; there are: {', '.join(names)}")
                for arrays in arrays_of(file, ((reader.line_num, row) for row in reader), fields, parse):
                    left = iter(arrays)
                    groups = [np.stack([next(left) for _ in sources[column.name]], 1) for column in made]
                    yield [group.reshape((-1, *one.shape)) for group, one in zip(groups, made, strict=True)]
            except csv_format.Error as error:
                raise DataError(f"{file}, line {reader.reader.line_num}: not CSV ({error})") from None
            except UnicodeDecodeError as error:
                raise DataError(f"{file}: not UTF-8 ({error.reason} at byte {error.start} of a part)") from None

    return dataset_of(paths, made, read, shuffle=shuffle)


def _value(field: Column, text: str) -> Any:
    """Convert a field; text that does not parse is returned unchanged and rejected later."""
    if field.is_text:
        return text
    if not field.is_number:
        return _BOOLEANS.get(text.strip().lower(), text)
    try:  # Python accepts 1_000, which is no number in CSV
        return text if "_" in text else int(text) if field.dtype.is_integer else float(text)
    except ValueError:
        return text
