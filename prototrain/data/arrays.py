"""Datasets of arrays that are in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.data.elements import by_path
from prototrain.errors import DataError


def from_arrays(arrays: dict[str, Any], name: str, batch_size: int, *, training: bool) -> tf.data.Dataset:
    """Batches of examples, which are the rows of arrays.

    What is shuffled, and saved with the position, are the numbers of the rows: eight bytes for each that is left.

    Args:
        arrays: of one length, by name; a value may be a dict or a tuple of arrays again.
        name: the dataset's, for messages.
        batch_size: of the batches.
        training: shuffle them anew in each pass, and leave out what does not fill a batch at its end; otherwise all
            come in their order.

    Raises:
        DataError: they are not of one length, or too few to fill a batch.
    """
    converted = _converted(arrays)
    lengths = {path: _length(array) for path, array in by_path(converted).items()}
    if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise DataError(f"the arrays of dataset {name!r} must be of one length; they are of {_in_words(lengths)}")
    number = next(iter(lengths.values()))
    rows = tf.data.Dataset.range(number)
    if training:
        if number < batch_size:
            raise DataError(f"dataset {name!r} has {number} examples, too few for a model.batch_size of {batch_size}")
        rows = rows.shuffle(number)
    with tf.device("CPU:0"):  # or the data would go to the GPU now and come back for every batch
        whole = tf.data.Dataset.from_tensors(converted).repeat()

    def taken(rows: tf.Tensor, whole: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = tf.nest.map_structure(lambda array: tf.gather(array, rows), whole)
        return found

    batches = tf.data.Dataset.zip(rows.batch(batch_size, drop_remainder=training), whole)
    return batches.map(taken).prefetch(2)


def as_array(value: Any) -> Any:
    """An array as Keras takes it: a wider float becomes one of its default kind.

    Raises:
        DataError: it has no axis.
    """
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    array = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
    if array.ndim == 0:
        raise DataError(f"the data must be arrays of one length, not {type(value).__name__}")
    is_float = np.issubdtype(array.dtype, np.floating)
    return array.astype(keras.config.floatx()) if is_float and array.dtype.name != "bfloat16" else array


def _converted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _converted(inside) for name, inside in value.items()}
    return tuple(map(_converted, value)) if isinstance(value, tuple) else as_array(value)


def _length(array: Any) -> int:
    if isinstance(array, tf.SparseTensor):
        raise DataError("a sparse tensor has no rows to take: give a tf.data.Dataset of it")
    return int(array.nrows()) if isinstance(array, tf.RaggedTensor) else len(array)


def _in_words(lengths: dict[str, int]) -> str:
    return ", ".join(f"{path!r}: {length}" for path, length in lengths.items()) or "no arrays"
