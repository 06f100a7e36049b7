"""Rows of files that Python parses: all in memory, or in a table on disk and in a random order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from prototrain.readers.columns import Arrays, Column
from prototrain.readers.order import Order, check_shuffle, random_order
from prototrain.readers.paths import Files
from prototrain.readers.tables import Table, table_of


def dataset_of(
    kind: str,
    files: Files,
    columns: list[Column],
    read: Callable[[str, str], Iterator[Arrays]],
    *,
    shuffle: str | Literal[False] | None,
    seed: int | None,
    settings: Any = None,
) -> tf.data.Dataset:
    """All rows of some files, which are read now, unless there is a table of them.

    Args:
        kind: of the files, in words.
        files: that are read.
        columns: of the rows.
        read: gives the columns of some rows of a file at a time, from the file's name for messages and its path.
        shuffle: as a reader was given it; None for the files' order.
        seed: of a random order; None for the run's.
        settings: what else the rows depend on, as JSON can hold it.

    Raises:
        DataError: a file cannot be read, or `shuffle` is nothing that a reader knows.
    """

    def chunks() -> Iterator[Arrays]:
        for name, path in files:
            yield from read(name, path)

    if shuffle is None or shuffle is False:
        return _in_memory(chunks(), columns)
    check_shuffle(shuffle)
    table = table_of(kind, files, columns, chunks, settings)
    return _shuffled(table, columns, files, seed)


def _in_memory(chunks: Iterator[Arrays], columns: list[Column]) -> tf.data.Dataset:
    found = list(chunks)
    arrays = {
        column.name: np.concatenate([chunk[column.name] for chunk in found]) if found else column.array([], 0)
        for column in columns
    }
    with tf.device("/cpu:0"):  # or the data would go to the GPU now and come back for every batch
        return tf.data.Dataset.from_tensor_slices(arrays)


def _shuffled(table: Table, columns: list[Column], files: Files, seed: int | None) -> tf.data.Dataset:
    def read(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tf.numpy_function(table.take, [rows], [column.dtype for column in columns])
        return {
            column.name: tf.ensure_shape(value, [None, *column.shape])
            for column, value in zip(columns, values, strict=True)
        }

    each = table.size / len(table)
    names, paths = ([*each_kind] for each_kind in zip(*files, strict=True))
    return random_order(Order(len(table), seed), read, about="rows", files=names, paths=paths, each=each)
