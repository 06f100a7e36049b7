"""An iterator's state as TensorFlow gives, writes and takes it."""

from __future__ import annotations

import os
from mmap import ACCESS_READ, mmap
from typing import Any

import tensorflow as tf

from prototrain.private_api.datasets import iterator_state, set_iterator_state
from prototrain.system.files import literal_prefix

NOT_SAVABLE = (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)
_DATA = "data-00000-of-00001"
_KEY = "iterator/.ATTRIBUTES/ITERATOR_STATE"  # as tf.train.Checkpoint(iterator=...) names it


def take_state(iterator: Any) -> tf.Tensor:
    """An iterator's state, which does not move on with it; a vector of variants.

    Raises:
        NOT_SAVABLE: it cannot be saved.
    """
    return iterator_state(iterator)


def restore_state(iterator: Any, state: tf.Tensor) -> None:
    """Bring an iterator of the same dataset to a state.

    Raises:
        tf.errors.OpError: it is not of such an iterator.
    """
    set_iterator_state(iterator, state)


def write_state(prefix: str, state: tf.Tensor) -> None:
    """Write a state to files, from any thread."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], tensors=[state])


def read_state(prefix: str) -> tf.Tensor:
    """Read a state that was written.

    Raises:
        tf.errors.OpError: there is none.
    """
    with literal_prefix(prefix) as path, tf.device("CPU:0"):
        (state,) = tf.raw_ops.RestoreV2(prefix=path, tensor_names=[_KEY], shape_and_slices=[""], dtypes=[tf.variant])
    return state


def mapped(prefix: str) -> mmap:
    """The bytes of a written state."""
    with open(f"{prefix}.{_DATA}", "rb") as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ)


def size_of_state(prefix: str) -> int:
    """The size of a written state in bytes."""
    return os.path.getsize(f"{prefix}.{_DATA}")
