"""CSV files with a line of names."""

from __future__ import annotations

import csv as csv_format
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.arrays import dataset_of
from prototrain.readers.columns import Arrays, Column, Features, arrays_of, columns_of
from prototrain.readers.order import Shuffle
from prototrain.readers.paths import PathLike, hint_for_missing, local_files, note_reader, several, without_columns

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
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads CSV files, whose first line names the columns.

    The files are parsed and checked whole, now, and kept in memory. Empty lines are skipped, and so are columns that no
    feature is made of. Fields may be quoted, with line ends in them; the text is UTF-8.

    Args:
        paths: one file or several, read in the order given; URLs are downloaded.
        features: name -> (dtype, shape) of every feature, e.g. `{"age": ("float32", []), "label": ("int32", [])}`.
            The dtype is an integer, a floating, `bool` (true, false, 1, 0) or `string`; the shape is fixed.
        columns: of a feature that is no scalar, the names of the columns of its values, in row-major order, e.g.
            `{"position": ["x", "y"]}`. A scalar is the column of its own name, unless it has another here.
        delimiter: the character between two fields.
        header: the columns' names, of files whose first line is an example.
        defaults: the value of an empty field, by feature, e.g. `{"age": 0.0, "city": "unknown"}`. Without one an empty
            field is an empty text, and an error where a number is wanted.
        shuffle: "index" gives all examples in a new random order in each pass.
        seed: of that order; None for the run's.

    Returns:
        A dataset of dictionaries name -> tensor of that dtype and shape, one per row, in the order of the files.

    Raises:
        DataError: a file cannot be read or has no examples, has no such columns, or a row has more or fewer fields or
            a value that is not of its dtype, not finite, or does not fit.
        StorageError: a file at a URL cannot be downloaded.
    """
    made = columns_of(features, "CSV files hold")
    sources = {column.name: list((columns or {}).get(column.name, [column.name])) for column in made}
    for column in made:
        size = tf.TensorShape(column.shape).num_elements()
        if len(sources[column.name]) != size or not size:
            raise DataError(
                f"{column.name!r} has {size} values and {len(sources[column.name])} columns: name one for each with "
                f"columns={{{column.name!r}: [...]}}"
            )
    if unknown := [name for name in defaults or {} if name not in sources]:
        raise DataError(f"defaults: there is no feature {unknown[0]!r}; there are: {', '.join(sources)}")
    # While a file is parsed, each of its columns is one of scalars, so that messages name it.
    fields = [Column(name, column.dtype, (), "") for column in made for name in sources[column.name]]
    empty = {name: value for feature, value in (defaults or {}).items() for name in sources[feature]}

    def read(file: str, path: str) -> Iterator[Arrays]:
        for arrays in _read(file, path, fields, delimiter, header, empty):
            left = iter(arrays)
            groups = [[next(left) for _ in sources[column.name]] for column in made]
            yield [np.stack(group, 1).reshape((-1, *one.shape)) for group, one in zip(groups, made, strict=True)]

    given = several(paths)
    return note_reader(dataset_of(local_files(given), made, read, shuffle=shuffle, seed=seed), "csv", given)


def _read(
    file: str,
    path: str,
    fields: list[Column],
    delimiter: str,
    header: Sequence[str] | None,
    empty: Mapping[str, Any],
) -> Iterator[Arrays]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as opened:
            reader = csv_format.reader(opened, delimiter=delimiter, strict=True)
            names = list(next(reader, []) if header is None else header)
            lacking = {field.name for field in fields if field.name not in names} & without_columns()
            for field in fields:
                if field.name not in lacking and names.count(field.name) != 1:
                    problem = "has no column" if field.name not in names else "has several columns"
                    hint = "" if field.name in names else hint_for_missing(field.name)
                    raise DataError(f"{file}: {problem} {field.name!r}; there are: {', '.join(names)}{hint}")
            parsers = [
                (0, _constant(field)) if field.name in lacking else (names.index(field.name), _parser(field, empty))
                for field in fields
            ]

            def parse(row: list[str]) -> list[Any]:
                if len(row) != len(names):
                    raise DataError(f"has {len(row)} fields where {len(names)} are expected")
                return [parser(row[place]) for place, parser in parsers]

            yield from arrays_of(file, ((reader.line_num, row) for row in reader if row), fields, parse)
    except csv_format.Error as error:
        raise DataError(f"{file}, line {reader.line_num}: not CSV ({error})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 ({error.reason} at byte {error.start} of a part)") from None


def _constant(column: Column) -> Callable[[str], Any]:
    zero = column.zero
    return lambda text: zero


def _parser(column: Column, empty: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return what makes a value of a field; a text that is none is kept, and refused as one."""
    if column.name in empty:
        default, parse_filled = empty[column.name], _parser(column, {})
        return lambda text: parse_filled(text) if text.strip() else default
    if column.is_text:
        return str
    if column.dtype == tf.bool:
        return lambda text: _BOOLEANS.get(text.strip().lower(), text)
    number = int if column.dtype.is_integer else float

    def parse(text: str) -> Any:
        try:
            return text if "_" in text else number(text)  # Python takes 1_000, and CSV has no such numbers
        except ValueError:
            return text

    return parse
