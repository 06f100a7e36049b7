"""What is known of the stages of a pipeline: what a saved position of them is worth, and whether they repeat."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from prototrain.checkpoint import holds_graph
from prototrain.data.iterator_state import NOT_SAVABLE, bytes_of, take_state
from prototrain.data.pipeline import graphs, parts
from prototrain.system.tracebacks import cause

_UNNAMED = "(its name is computed)"
_GENERATOR = b"@@epoch_num_random_samples"  # what TensorFlow calls a part of a shuffle's state
_NAME = re.compile(rb"Iterator::[\w:\[\]]+")
_COUNTED = re.compile(rb"(?<!Concatenate)(?<!Zip)\[\d+\]")  # the number of a pass or an element


@dataclass(frozen=True)
class Knowledge:
    """What is known of a dataset.

    Attributes:
        caches: the files of its `cache(filename)`.
        rereads: whether what is read behind a restored state is what was read there before.
        shuffles: how many it has.
    """

    caches: list[str]
    rereads: bool
    shuffles: int


def knowledge_of(dataset: tf.data.Dataset) -> Knowledge:
    """Find out what is known of a dataset, from its stages alone."""
    return Knowledge(
        caches=file_caches(dataset),
        rereads=gives_the_same_again(dataset) and not unseeded(dataset),
        shuffles=count_shuffles(dataset),
    )


def why_not_saved(iterator: Any, caches: list[str]) -> str | None:
    """Why a checkpoint cannot hold an iterator's state, or None if it can.

    Args:
        iterator: has begun.
        caches: the files of its dataset's caches.
    """
    if caches:
        # Restored without that file, the iterator would end the whole process.
        return f"it is cached in the file {caches[0]}, which a saved position would need"
    try:
        content = bytes_of(take_state(iterator))
    except NOT_SAVABLE as error:
        return f"its iterator cannot be saved: {cause(error)}"
    return "its iterator holds datasets, whose graphs a restore would have to run" if holds_graph(content) else None


def generators(content: bytes | mmap.mmap) -> set[bytes]:
    """Name the shuffles whose random generators a state holds, by their places in the pipeline.

    TensorFlow drops what is behind some stages when it ends, such as behind a `batch` whose last batch is a partial
    one. A state that is taken before the next pass has begun lacks the shuffle behind it, and would begin that pass in
    the order of the first one.

    Args:
        content: the bytes of a state.
    """
    found = set()
    at = content.find(_GENERATOR)
    while at >= 0:
        name = bytes(content[content.rfind(b"Iterator::", 0, at) : at])
        if _NAME.fullmatch(name):  # and not an example that has these words
            found.add(_COUNTED.sub(b"[]", name))
        at = content.find(_GENERATOR, at + 1)
    return found


def gives_the_same_again(dataset: tf.data.Dataset) -> bool:
    """Whether what is read behind a restored state is for certain what was read there before, and in that order."""
    options = dataset.options()
    forgets = options.experimental_external_state_policy not in (None, tf.data.experimental.ExternalStatePolicy.FAIL)
    return not forgets and options.deterministic is not False and not any(map(_may_change, parts(dataset)))


def _may_change(part: Any) -> bool:
    # A parallel interleave does not say whether it may change the order, nor a variant what dataset it stands for.
    hidden = type(part).__name__ in ("_ParallelInterleaveDataset", "_VariantDataset") or any(
        tensor.dtype == tf.variant for function in part._functions() for tensor in function.function.captured_inputs
    )
    ops = (op for op in _ops(part) if "deterministic" in op.node_def.attr)
    return (
        hidden
        or getattr(part, "_deterministic", "") == "false"
        or any(op.get_attr("deterministic") == b"false" for op in ops)
    )


def file_caches(dataset: tf.data.Dataset) -> list[str]:
    """The names that a dataset gives to the files of its `cache(filename)`, wherever in it they are; often none."""
    found: set[str] = set()
    for part in parts(dataset):
        if type(part).__name__ == "CacheDataset":
            found.add(_name(part._filename))
        found.update(_name(op.inputs[1]) for op in _ops(part) if op.type.startswith("CacheDataset"))
    return sorted(found - {""})  # a cache in memory has an empty name


def unseeded(dataset: Any) -> bool:
    """Whether a dataset is shuffled, or sampled from others, in another order in every process."""
    drawn = (part for part in parts(dataset) if _is_shuffle(part) or type(part).__name__ == "_RandomDataset")
    return not all(int(part._seed) or int(part._seed2) for part in drawn)


def count_shuffles(dataset: tf.data.Dataset) -> int:
    """The number of shuffles in a dataset; one in a function keeps its iterator from being saved at all."""
    return sum(map(_is_shuffle, parts(dataset)))


def _is_shuffle(part: Any) -> bool:
    return type(part).__name__.startswith("_Shuffle")


def _ops(part: Any) -> Iterator[Any]:
    return (op for graph in graphs(part) for op in graph.get_operations())


def _name(tensor: Any) -> str:
    value = tf.get_static_value(tensor)
    return _UNNAMED if value is None else bytes(value).decode(errors="replace")


def reshuffles(dataset: Any) -> bool:
    """Whether each reading of a dataset gives another order."""
    return any(_is_shuffle(part) and part._reshuffle_each_iteration is not False for part in parts(dataset))
