"""Dividing a global batch into the parts that towers, and micro-batches within a tower, work on."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.data.elements import by_path
from prototrain.errors import ConfigError

Batch = dict[str, Any]


def split_batch(inputs: Batch, parts: int) -> list[Batch]:
    """Divide every tensor of a batch evenly along its first dimension; a scalar goes to every part. Traced or eager.

    Raises:
        tf.errors.InvalidArgumentError: the number of examples does not divide.
    """
    if parts == 1:
        return [inputs]
    paths = {id(value): path for path, value in by_path(inputs).items()}
    divided = [_split(value, parts, paths[id(value)]) for value in tf.nest.flatten(inputs)]
    return [tf.nest.pack_sequence_as(inputs, [values[index] for values in divided]) for index in range(parts)]


def first_part(inputs: Batch, parts: int) -> Batch:
    """The first of the parts; all of a batch that has fewer examples than parts."""
    found: Batch = tf.nest.map_structure(lambda value: _first(value, parts), inputs)
    return found


def check_divides(batch_size: int, towers: int, micro_batches: int) -> None:
    """Check that ``model.batch_size`` can be divided evenly.

    Raises:
        ConfigError: it cannot.
    """
    if batch_size % (towers * micro_batches):
        into = f"{towers} towers" + (f" with {micro_batches} micro-batches each" if micro_batches > 1 else "")
        nearest = -(-batch_size // (towers * micro_batches)) * towers * micro_batches
        raise ConfigError(
            f"model.batch_size: {batch_size} examples do not divide evenly into {into}; {nearest} would, "
            'or batch="per_tower" gives each tower a batch of its own'
        )


def _split(value: Any, parts: int, path: str) -> list[Any]:
    if isinstance(value, tf.SparseTensor):
        with tf.control_dependencies(_even(value.dense_shape[0], parts, path)):
            return list(tf.sparse.split(value.with_values(tf.identity(value.values)), parts, axis=0))
    if value.shape.rank == 0:
        return [value] * parts
    if isinstance(value, tf.RaggedTensor):
        size = value.nrows() // parts
        with tf.control_dependencies(_even(value.nrows(), parts, path)):
            return [value[index * size : (index + 1) * size] for index in range(parts)]
    if value.shape[0] is not None and value.shape[0] % parts == 0:
        return list(tf.split(value, parts))
    with tf.control_dependencies(_even(tf.shape(value)[0], parts, path)):
        return list(tf.split(tf.identity(value), parts))


def _even(examples: Any, parts: int, path: str) -> list[Any]:
    message = (
        f"the batch does not divide evenly into {parts} parts: {path} has another number of rows; batch the training "
        "dataset with drop_remainder=True, or repeat it before batching"
    )
    check = tf.debugging.assert_equal(examples % parts, tf.zeros([], examples.dtype), message)
    return [] if check is None else [check]  # None: it was checked already, eagerly or while tracing


def _first(value: Any, parts: int) -> Any:
    if value.shape.rank == 0 or parts == 1:
        return value
    if isinstance(value, tf.SparseTensor):
        size = tf.maximum(value.dense_shape[0] // parts, 1)
        rest = value.dense_shape[1:]
        return tf.sparse.slice(value, tf.zeros_like(value.dense_shape), tf.concat([[size], rest], 0))
    examples = value.nrows() if isinstance(value, tf.RaggedTensor) else tf.shape(value)[0]
    return value[: tf.maximum(examples // parts, 1)]
