"""The position in a dataset as TensorFlow saves it, and whether it may be saved so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from prototrain.checkpoint import holds_graph
from prototrain.tracebacks import cause

_NOT_SAVABLE = (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)
_UNNAMED = "(its name is computed)"
_KEY = "iterator/.ATTRIBUTES/ITERATOR_STATE"  # as tf.train.Checkpoint(iterator=...) names it


def take_state(iterator: Any) -> tf.Tensor:
    """An iterator's state, which does not move on with it; a vector of variants."""
    return iterator._serialize_to_tensors()["_STATE"]


def write_state(prefix: str, state: tf.Tensor) -> None:
    """Write what `take_state` returned; from any thread."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], tensors=[state])


def read_state(prefix: str, iterator: Any) -> None:
    """Bring an iterator of the same dataset to the state that was written.

    Raises:
        tf.errors.OpError: there is none, or it is not of such an iterator.
    """
    with tf.device("CPU:0"):
        (state,) = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], dtypes=[tf.variant])
    iterator._restore_from_tensors({"_STATE": state})


def why_not_saved(iterator: Any, caches: list[str], memory: str) -> str | None:
    """Why a checkpoint cannot hold an iterator's state, or None if it can.

    Args:
        iterator: has begun.
        caches: what `file_caches` finds in its dataset.
        memory: where to save it for a trial.
    """
    if caches:
        # Restored without that file, the iterator would end the whole process.
        return f"it is cached in the file {caches[0]}, which a saved position would need"
    try:
        write_state(f"{memory}/trial", take_state(iterator))
    except _NOT_SAVABLE as error:
        return f"its iterator cannot be saved: {cause(error)}"
    with tf.io.gfile.GFile(f"{memory}/trial.data-00000-of-00001", "rb") as file:
        holds_datasets = holds_graph(file.read())
    return "its iterator holds datasets, whose graphs a restore would have to run" if holds_datasets else None


def file_caches(dataset: tf.data.Dataset) -> list[str]:
    """The names that a dataset gives to the files of its `cache(filename)`, wherever in it they are; often none."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [dataset]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        # TensorFlow has no public way to ask what a dataset is made of, except as a graph with all its data in it.
        waiting += part._inputs()
        if type(part).__name__ == "CacheDataset":
            found.add(_name(part._filename))
        for function in part._functions():
            found.update(_in_graph(function.function.graph))
    return sorted(found - {""})  # a cache in memory has an empty name


def _in_graph(graph: Any) -> Iterator[str]:
    for op in graph.get_operations():
        if op.type.startswith("CacheDataset"):
            yield _name(op.inputs[1])
    for name in graph._functions:
        yield from _in_graph(graph._get_function(name).graph)


def _name(tensor: Any) -> str:
    value = tf.get_static_value(tensor)
    return _UNNAMED if value is None else bytes(value).decode(errors="replace")
