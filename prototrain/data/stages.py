"""The stages of a dataset: walking over them, and over the functions that they call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import tensorflow as tf

from prototrain.tf_private import nested_functions, stage_functions, stage_inputs, stood_for
from prototrain.tf_private import stage_name as name_of

__all__ = ["graph_of", "graphs", "name_of", "nodes", "operations", "shown", "sources", "stages"]

_IGNORE = 1  # state outside of the graph, which is not wanted here


def shown(stage: Any) -> str:
    """A stage's name for people, such as ``ParallelMap``."""
    return name_of(stage).strip("_")


def sources(stage: Any) -> list[Any]:
    """The stages that a stage reads from."""
    inputs, held = _inputs_and_held(stage)
    # What it makes of its input itself, as `ragged_batch` does with a `map`, is what it reads.
    through = {id(known) for known in _walk(held, lambda known: [*chain(*_inputs_and_held(known))])} if held else set()
    return [value for value in inputs if id(value) not in through] + held


def stages(*datasets: tf.data.Dataset) -> Iterator[Any]:
    """The datasets and all that they are made of, each once."""
    return _walk(datasets, sources)


def _inputs_and_held(stage: Any) -> tuple[list[Any], list[Any]]:
    if stood_for(stage) is not None:
        return [stood_for(stage)], []
    inputs = stage_inputs(stage)
    held = [value for value in vars(stage).values() if isinstance(value, tf.data.Dataset)]
    return inputs, [value for value in held if not any(value is known for known in inputs)]


def _walk(begin: Iterable[Any], below: Callable[[Any], list[Any]]) -> Iterator[Any]:
    seen: set[int] = set()
    waiting = list(begin)
    while waiting:
        stage = waiting.pop()
        if id(stage) not in seen:
            seen.add(id(stage))
            waiting += below(stage)
            yield stage


def graphs(stage: Any) -> Iterator[Any]:
    """The graphs of the functions that a stage calls, and of those inside of them."""
    waiting = [function.graph for function in stage_functions(stage)]
    while waiting:
        graph = waiting.pop()
        waiting += [function.graph for function in nested_functions(graph)]
        yield graph


def operations(stage: Any) -> Iterator[Any]:
    """The operations of the functions that a stage calls."""
    return (op for graph in graphs(stage) for op in graph.get_operations())


def nodes(dataset: Any) -> list[Any]:
    """A dataset as the nodes of a graph, with all its data in them; none if TensorFlow cannot tell."""
    graph = graph_of(dataset)
    return [] if graph is None else list(graph.node)


def graph_of(dataset: Any) -> Any:
    """A dataset as a graph, a `GraphDef` with all its data in it; None if TensorFlow cannot tell."""
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=_IGNORE,
            strip_device_assignment=True,
        )
    except tf.errors.OpError:
        return None
    return tf.compat.v1.GraphDef.FromString(graph.numpy())
