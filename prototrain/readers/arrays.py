"""Rows of files that are parsed by Python and kept in memory: in the files' order, or in a random one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.columns import Arrays, Column
from prototrain.readers.order import Order, Shuffle, is_by_index, random_order
from prototrain.readers.paths import Files, unreadable


def dataset_of(
    files: Files,
    columns: list[Column],
    read: Callable[[str, str], Iterable[Arrays]],
    *,
    shuffle: Shuffle,
    seed: int | None,
) -> tf.data.Dataset:
    """Return all rows of some files, which are read now.

    Args:
        files: that are read.
        columns: of the rows.
        read: gives the columns of some rows at a time, from a file's name for messages and its path.
        shuffle: as a reader was given it.
        seed: of a random order; None for the run's.

    Raises:
        DataError: a file cannot be read or has no examples, or `shuffle` is nothing that a reader knows.
    """
    by_index = is_by_index(shuffle)
    chunks: list[Arrays] = []
    for name, path in files:
        before = len(chunks)
        try:
            chunks += read(name, path)
        except OSError as error:
            raise unreadable(path, error) from error
        if len(chunks) == before:
            raise DataError(f"{name}: holds no examples")
    names = [column.name for column in columns]
    arrays = [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
    if not by_index:
        with tf.device("/cpu:0"):  # or the data would go to the GPU now and come back for every batch
            return tf.data.Dataset.from_tensor_slices(dict(zip(names, arrays, strict=True)))

    def take(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tf.numpy_function(
            lambda rows: [array[rows] for array in arrays], [rows], [column.dtype for column in columns]
        )
        shaped = [tf.ensure_shape(value, [None, *one.shape]) for value, one in zip(values, columns, strict=True)]
        return dict(zip(names, shaped, strict=True))

    length = len(arrays[0])
    size = sum(sum(map(len, array.ravel())) if array.dtype == object else array.nbytes for array in arrays)
    shown, paths = ([*each] for each in zip(*files, strict=True))
    return random_order(Order(length, seed), take, about="rows", files=shown, paths=paths, each=size / length)
