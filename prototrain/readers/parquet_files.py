"""Parquet files, read by pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import Shuffle
from prototrain.readers.paths import PathLike
from prototrain.readers.tables import CHUNK, Arrays, Column, Features, columns_of, dataset_of
from prototrain.system.tracebacks import first_line


def parquet(
    paths: PathLike | Iterable[PathLike],
    *,
    features: Features,
    shuffle: Shuffle = None,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads Parquet files; the extra `parquet`, which is pyarrow.

    The columns that are features are read and checked whole, now, and kept in memory.

    Args:
        paths: one file or several, read in the order given; URLs are downloaded.
        features: name -> (dtype, shape) of every feature, each the column of its name, e.g.
            `{"example": ("float32", [64]), "label": ("int32", [])}`. The dtype is an integer, a floating, `bool` or
            `string` (texts and bytes); a shape that is not `[]` is that of lists, or of lists in lists, of fixed
            lengths.
        shuffle: "index" gives all examples in a new random order in each pass.
        seed: of that order; None for the run's.

    Returns:
        A dataset of dictionaries name -> tensor of that dtype and shape, one per row, in the order of the files.

    Raises:
        DataError: pyarrow is not installed, a file cannot be read or has no examples, or a row group has no such
            features: one is missing or null, has another shape or type, is not finite, or does not fit into its dtype.
        StorageError: a file at a URL cannot be downloaded.
    """
    columns = columns_of(features)
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise DataError(
            "Parquet files are read by pyarrow, which is not installed: pip install 'prototrain[parquet]'"
        ) from error
    return dataset_of(paths, columns, partial(_read, columns), shuffle=shuffle, seed=seed)


def _read(columns: list[Column], name: str, path: str) -> Iterator[Arrays]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    where = name
    try:
        with open(path, "rb") as opened, ParquetFile(opened) as file:
            there = file.schema_arrow.names
            for column in columns:
                if column.name not in there:
                    raise DataError(f"{name}: has no column {column.name!r}; there are: {', '.join(there)}")
            for group in range(file.num_row_groups):
                where = f"{name}, row group {group}"
                for batch in file.iter_batches(CHUNK, row_groups=[group], columns=[column.name for column in columns]):
                    yield [_array(batch.column(column.name), column, where) for column in columns]
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # pyarrow's own has none
            raise
        raise DataError(f"{where}: not Parquet ({first_line(error)})") from None


def _array(values: Any, column: Column, where: str) -> np.ndarray[Any, Any]:
    """Return the values of a column of a row group, checked."""
    import pyarrow
    import pyarrow.compute as pc

    rows = len(values)

    def refuse(problem: str) -> NoReturn:
        raise DataError(f"{where}: {column.name!r} {problem}")

    for size in column.shape:
        if not any(getattr(pyarrow.types, f"is_{name}")(values.type) for name in _LISTS):
            refuse(f"holds {values.type}, not lists of {size} values")
        if values.null_count:
            refuse("has a null")
        lengths = set(pc.list_value_length(values).unique().to_pylist())
        if lengths - {size}:
            refuse(f"has {min(lengths - {size})} values where {size} are expected")
        values = pc.list_flatten(values)
    if pyarrow.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        refuse("has a null")
    kind = values.type
    if column.is_text:
        if not any(getattr(pyarrow.types, f"is_{name}")(kind) for name in _TEXTS):
            refuse(f"holds {kind}, not string")
        return column.array_of_checked(values.to_pylist(), rows)
    is_number = pyarrow.types.is_integer(kind) or (pyarrow.types.is_floating(kind) and column.dtype.is_floating)
    if not (pyarrow.types.is_boolean(kind) if column.dtype == tf.bool else is_number):
        refuse(f"holds {kind}, not {column.dtype.name}")
    array = np.asarray(values.to_numpy(zero_copy_only=False))
    if column.is_number and len(array):
        if not np.isfinite(array).all():
            refuse("has a value that is not finite")
        for value in (array.min().item(), array.max().item()):
            if not column.low <= value <= column.high:
                refuse(f"has {value}, which does not fit into {column.dtype.name}")
    return array.astype(column.dtype.as_numpy_dtype).reshape((rows, *column.shape))


_LISTS = ("list", "large_list", "fixed_size_list")
_TEXTS = ("string", "large_string", "binary", "large_binary", "fixed_size_binary")
