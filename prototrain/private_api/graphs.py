"""Graphs: their operations, the functions that they call, and what is saved of objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from prototrain.private_api import private


@private
def called_function(graph: Any, name: str) -> Any:
    """The traced function of this name in a graph, with its own `graph`; None if there is none, or one without a graph.

    The gradient of `tf.nn.ctc_loss` is a function without a graph.
    """
    found = graph._get_function(name)
    return found if hasattr(found, "graph") else None


@private
def nested_functions(graph: Any) -> list[Any]:
    """All functions that a graph knows."""
    found = [called_function(graph, name) for name in graph._functions]
    return [function for function in found if function is not None]


def called(op: Any) -> list[Any]:
    """The graphs of the functions that an operation calls: branches, a loop's condition and body, a nested function."""
    definition = op.graph.op_def_for_type(op.type)  # faster than the op's own attributes
    if not any(attribute.type in ("func", "list(func)") for attribute in definition.attr):
        return []
    names = []
    for _, attribute in sorted(op.node_def.attr.items()):
        names += [attribute.func.name] * attribute.HasField("func")
        names += [function.name for function in attribute.list.func]
    functions = [called_function(op.graph, name) for name in names]
    return [function.graph for function in functions if function is not None]


def all_operations(graph: Any) -> Iterator[Any]:
    """All operations of a graph, and of the functions that they call."""
    for op in graph.get_operations():
        yield op
        for function in called(op):
            yield from all_operations(function)


@private
def captures_vary(function: Any) -> bool:
    """Whether the captured tensors of a concrete function may differ from call to call."""
    return bool(function.graph.deferred_external_captures)


@private
def passing_graph(name: str) -> Any:
    """A temporary graph for tracing, which captures eager tensors as `tf.function` does."""
    return tf.__internal__.FuncGraph(name)


@private
def trackable_kinds() -> tuple[type, ...]:
    """The base class of everything that `tf.train.Checkpoint` saves."""
    return (tf.__internal__.tracking.Trackable,)


@private
def names_in_checkpoint(saved: bytes) -> dict[str, str]:
    """The names of variables by their keys in a checkpoint of `tf.train.Checkpoint`.

    Args:
        saved: the checkpoint's `TrackableObjectGraph`.
    """
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph.FromString(saved)
    return {entry.checkpoint_key: entry.full_name for node in graph.nodes for entry in node.attributes}


@private
def is_stateful(kind: str) -> bool:
    """Whether an op is stateful; True for an unknown one."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(kind)
    return definition is None or definition.is_stateful


@private
def with_constants(function: Any) -> Any:
    """A concrete function whose variables are constants.

    Raises:
        ValueError, NotImplementedError, tf.errors.OpError: it uses something that cannot be a constant.
    """
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    return convert_variables_to_constants_v2(function)


@private
def optimized(config: tf.compat.v1.ConfigProto, meta: tf.compat.v1.MetaGraphDef) -> tf.compat.v1.GraphDef:
    """A graph after TensorFlow's graph optimizers; "train_op" in `meta` names the outputs."""
    from tensorflow.python.grappler import tf_optimizer

    return tf_optimizer.OptimizeGraph(config, meta)
