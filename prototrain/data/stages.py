"""The stages of a dataset: walking over them, and over the functions that they call.

TensorFlow has no public way to ask what a dataset is made of, except as a graph with all its data in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

_IGNORE = 1  # state outside of the graph, which is not wanted here


def name_of(stage: Any) -> str:
    """The name of a stage's class, such as ``_ParallelMap``; the underscore tells some of them apart."""
    return type(stage).__name__.removesuffix("V2").removesuffix("Dataset")


def shown(stage: Any) -> str:
    """A stage's name for people, such as ``ParallelMap``."""
    return name_of(stage).strip("_")


def sources(stage: Any) -> list[Any]:
    """The stages that a stage reads from."""
    if hasattr(stage, "_impl"):  # a reader, which stands for a dataset that it keeps to itself
        return [stage._impl]
    inputs = list(stage._inputs())
    held = [value for value in vars(stage).values() if isinstance(value, tf.data.Dataset)]
    return inputs + [value for value in held if not any(value is known for known in inputs)]


def stages(*datasets: tf.data.Dataset) -> Iterator[Any]:
    """The datasets and all that they are made of, each once."""
    seen: set[int] = set()
    waiting: list[Any] = list(datasets)
    while waiting:
        stage = waiting.pop()
        if id(stage) not in seen:
            seen.add(id(stage))
            waiting += sources(stage)
            yield stage


def graphs(stage: Any) -> Iterator[Any]:
    """The graphs of the functions that a stage calls, and of those inside of them."""
    waiting = [function.function.graph for function in stage._functions()]
    while waiting:
        graph = waiting.pop()
        waiting += [graph._get_function(name).graph for name in graph._functions]
        yield graph


def operations(stage: Any) -> Iterator[Any]:
    """The operations of the functions that a stage calls."""
    return (op for graph in graphs(stage) for op in graph.get_operations())


def nodes(dataset: Any) -> list[Any]:
    """A dataset as the nodes of a graph, with all its data in them; none if TensorFlow cannot tell."""
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset._variant_tensor, external_state_policy=_IGNORE, strip_device_assignment=True
        )
    except tf.errors.OpError:
        return []
    return list(graph_pb2.GraphDef.FromString(graph.numpy()).node)
