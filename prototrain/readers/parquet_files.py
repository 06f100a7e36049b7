"""A reader of Parquet files, based on pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import Shuffle
from prototrain.readers.tables import CHUNK, Arrays, Column, Features, columns_of, dataset_of
from prototrain.system.files import PathLike
from prototrain.system.tracebacks import cause


def parquet(
    paths: PathLike | Iterable[PathLike],
    *,
    features: Features,
    shuffle: Shuffle = None,
) -> tf.data.Dataset:
    """Read Parquet files. Requires pyarrow, which the extra `parquet` installs.

    The columns of the features are read and checked completely when this is called, and kept in memory.

    Args:
        paths, shuffle: see `json_lines`.
        features: name -> (dtype, shape) of every feature, read from the column with its name, e.g.
            `{"example": ("float32", [64]), "label": ("int32", [])}`. The dtype is an integer or float type, `bool` or
            `string` (strings and bytes). A shape other than `[]` requires (nested) lists of these fixed lengths.

    Returns:
        A dataset of dictionaries name -> tensor of that dtype and shape, one per row, in the order of the files.

    Raises:
        DataError: pyarrow is not installed, a file cannot be read or is empty, or a column is missing, has a null, or
            does not convert to the dtype and shape without loss.
        StorageError: a file at a URL cannot be downloaded.
    """
    columns = columns_of(features)
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise DataError("Parquet files need pyarrow: pip install 'prototrain[parquet]'") from error
    return dataset_of(paths, columns, partial(_read, columns), shuffle=shuffle)


def _read(columns: list[Column], name: str, path: str) -> Iterator[Arrays]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    where = name
    try:
        with open(path, "rb") as opened, ParquetFile(opened) as file:
            there = file.schema_arrow.names
            for column in columns:
                if there.count(column.name) != 1:
                    problem = "has several columns" if column.name in there else "has no column"
                    raise DataError(f"{problem} {column.name!r}; there are: {', '.join(there)}")
            for group in range(file.num_row_groups):
                where = f"{name}, row group {group}"
                for batch in file.iter_batches(CHUNK, row_groups=[group], columns=[column.name for column in columns]):
                    yield [_array(batch.column(column.name), column) for column in columns]
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # pyarrow's own errors have no errno
            raise
        raise DataError(f"{where}: not Parquet ({cause(error)})") from None


def _array(values: Any, column: Column) -> np.ndarray[Any, Any]:
    """Convert a column of a row group to a checked array, [rows, *shape]."""
    import pyarrow

    dtype = tf.float32 if column.dtype == tf.bfloat16 else column.dtype  # Arrow has no bfloat16
    kind = pyarrow.binary() if column.is_text else pyarrow.from_numpy_dtype(dtype.as_numpy_dtype)
    for size in reversed(column.shape):
        kind = pyarrow.list_(kind, size)
    rows, leaf = len(values), values.type
    while hasattr(leaf, "value_type"):  # a list
        leaf = leaf.value_type
    types = pyarrow.types
    if (column.dtype == tf.bool and not types.is_boolean(leaf)) or types.is_temporal(leaf):
        raise DataError(f"{column.name!r} is {values.type}, not {column.dtype.name}; convert it in the file")
    try:
        values = values.cast(kind)  # an integer that does not fit is an error
    except pyarrow.ArrowException as error:
        raise DataError(f"{column.name!r} is {values.type}, not {kind}: {cause(error)}") from None
    nulls = values.null_count
    for _ in column.shape:
        values = values.flatten()
        nulls += values.null_count
    if nulls:
        raise DataError(f"{column.name!r} has a null")
    found = column.array_of_checked(values.to_numpy(zero_copy_only=False), rows)
    if column.dtype.is_floating and not np.isfinite(found).all():
        raise DataError(f"{column.name!r} has a value that is not finite in {column.dtype.name}")
    return found
