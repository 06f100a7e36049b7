"""CSV files with a line of names."""

from __future__ import annotations

import csv as csv_format
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Literal

import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.columns import CHUNK, Arrays, Column, Features, columns_of, short
from prototrain.readers.paths import PathLike, local_files, unreadable
from prototrain.readers.rows import dataset_of

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_Rows = list[tuple[int, list[str]]]  # with the number of the line that each ends in


def csv(
    paths: PathLike | Iterable[PathLike],
    *,
    features: Features,
    columns: Mapping[str, Sequence[str]] | None = None,
    delimiter: str = ",",
    header: Sequence[str] | None = None,
    shuffle: Literal["index", False] | None = None,
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
        shuffle: "index" gives all examples in a new random order in each pass, from a table on disk in place of
            memory; it is made of the files once, and again when they have changed.
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
        if len(sources[column.name]) != size:
            raise DataError(
                f"{column.name!r} has {size} values and {len(sources[column.name])} columns: name one for each with "
                f"columns={{{column.name!r}: [...]}}"
            )
    read = partial(_read, made, sources, delimiter, header)
    settings = [sources, delimiter, None if header is None else list(header)]
    return dataset_of("csv", local_files(paths), made, read, shuffle=shuffle, seed=seed, settings=settings)


def _read(
    columns: list[Column],
    sources: dict[str, list[str]],
    delimiter: str,
    header: Sequence[str] | None,
    name: str,
    path: str,
) -> Iterator[Arrays]:
    is_empty = True
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv_format.reader(file, delimiter=delimiter, strict=True)
            names = list(next(reader, []) if header is None else header)
            places = {feature: _places(name, names, wanted) for feature, wanted in sources.items()}
            filled = ((reader.line_num, row) for row in reader if row)
            while rows := list(islice(filled, CHUNK)):
                is_empty = False
                yield _parsed(rows, columns, places, len(names)) or _one_by_one(name, rows, columns, places, names)
    except csv_format.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: not CSV ({error})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 ({error.reason} at byte {error.start} of a part)") from None
    except OSError as error:
        raise unreadable(path, error) from error
    if is_empty:
        raise DataError(f"{name}: holds no examples; it must have a line of names, and one row per example")


def _places(file: str, names: list[str], wanted: list[str]) -> list[int]:
    for name in wanted:
        if names.count(name) != 1:
            problem = "has no column" if name not in names else "has several columns"
            raise DataError(f"{file}: {problem} {name!r}; there are: {', '.join(names)}")
    return [names.index(name) for name in wanted]


def _parsed(rows: _Rows, columns: list[Column], places: dict[str, list[int]], fields: int) -> Arrays | None:
    """The features of good rows; None if anything is wrong, or may be."""
    if {len(row) for _, row in rows} != {fields}:
        return None
    found = {}
    try:
        for column in columns:
            wanted = places[column.name]
            texts = list(chain.from_iterable([row[place] for place in wanted] for _, row in rows))
            values = list(map(_parser(column), texts))
            if not column.all_good(values) or (column.is_number and any(value != value for value in values)):
                return None
            found[column.name] = column.array(values, len(rows))
    except (ValueError, LookupError):
        return None
    return found


def _one_by_one(
    file: str, rows: _Rows, columns: list[Column], places: dict[str, list[int]], names: list[str]
) -> Arrays:
    values: dict[str, list[Any]] = {column.name: [] for column in columns}
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(f"{file}, line {line}: has {len(row)} fields where {len(names)} are expected")
        for column in columns:
            for place in places[column.name]:
                try:
                    value = _parser(column)(row[place])
                except (ValueError, LookupError):
                    problem: str | None = f"is not of type {column.dtype.name}"
                else:
                    problem = column.problem(value)
                if problem:
                    raise DataError(f"{file}, line {line}: {names[place]!r}: {short(row[place])} {problem}")
                values[column.name].append(value)
    return {column.name: column.array(values[column.name], len(rows)) for column in columns}


def _parser(column: Column) -> Callable[[str], Any]:
    """What makes a value of a field; it fails with ValueError or LookupError."""
    if column.is_text:
        return str
    if column.dtype == tf.bool:
        return lambda text: _BOOLEANS[text.strip().lower()]
    number = int if column.dtype.is_integer else float

    def parse(text: str) -> Any:
        if "_" in text:  # which Python takes, and nobody who writes CSV
            raise ValueError
        return number(text)

    return parse
