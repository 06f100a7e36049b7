"""A reader of Parquet files, based on pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import Shuffle
from prototrain.readers.paths import PathLike
from prototrain.readers.tables import CHUNK, Arrays, Column, Features, columns_of, dataset_of
from prototrain.system.tracebacks import cause


def parquet(
    paths: PathLike | Iterable[PathLike],
    *,
    features: Features,
    shuffle: Shuffle = None,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Read Parquet files. Requires pyarrow, which the extra `parquet` installs.

    The columns of the features are read and checked completely when this is called, and kept in memory.

    Args:
        paths: one or more files, read in this order; URLs are downloaded.
        features: name -> (dtype, shape) of every feature, read from the column with its name, e.g.
            `{"example": ("float32", [64]), "label": ("int32", [])}`. The dtype is an integer or float type, `bool` or
            `string` (strings and bytes). A shape other than `[]` requires (nested) lists of these fixed lengths.
        shuffle: "index" returns all examples in a new random order in each pass.
        seed: seed of the order; None for the run's seed.

    Returns:
        A dataset of dictionaries name -> tensor of that dtype and shape, one per row, in the order of the files.

    Raises:
        DataError: pyarrow is not installed, a file cannot be read or is empty, or a feature is missing or null, has the
            wrong shape or type, is not finite, or is out of range.
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
                    raise DataError(f"has no column {column.name!r}; there are: {', '.join(there)}")
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
    import pyarrow.compute as pc

    def holds(*kinds: str) -> bool:
        return any(getattr(pyarrow.types, f"is_{kind}")(values.type) for kind in kinds)

    rows = len(values)
    for size in column.shape:
        if not holds("list", "large_list", "fixed_size_list"):
            raise DataError(f"{column.name!r} holds {values.type}, not lists of {size} values")
        for length in pc.list_value_length(values).unique().to_pylist():
            if length != size:
                raise DataError(f"{column.name!r} has {length or 'no'} values where {size} are expected")
        values = pc.list_flatten(values)
    if holds("dictionary"):
        values = values.dictionary_decode()
    if values.null_count:
        raise DataError(f"{column.name!r} has a null")
    if column.is_text:
        fits = holds("string", "large_string", "binary", "large_binary", "fixed_size_binary")
    elif column.is_number:
        fits = holds("integer") or (column.dtype.is_floating and holds("floating"))
    else:
        fits = holds("boolean")
    if not fits:
        raise DataError(f"{column.name!r} holds {values.type}, not {column.dtype.name}")
    array = values.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):  # overflows become infinite
        found = column.array_of_checked(array, rows)
    if column.is_number:
        flat = found.ravel()
        wrong = flat != array if column.dtype.is_integer else ~np.isfinite(flat)
        if wrong.any():
            value = array[wrong][0]
            problem = f"does not fit into {column.dtype.name}" if np.isfinite(value) else "is not finite"
            raise DataError(f"{column.name!r}: {value} {problem}")
    return found
