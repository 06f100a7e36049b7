"""Graphs, the functions in them, and the ops that Python code runs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.private_api.needs import needs

_GRAPH = "tensorflow.python.framework.ops:Graph"


@needs(
    f"{_GRAPH}._get_function",
    without="functions that a graph calls are not looked into, and what no checkpoint brings back may go unsaid",
    instead=lambda graph, name: None,
)
def called_function(graph: Any, name: str) -> Any:
    """The function of this name in a graph, with its own `graph`; None if the graph has none, or one of TensorFlow 1's
    kind, without a graph, as the gradient of `tf.nn.ctc_loss` is.

    It relies on `_get_function` giving what was traced, and not its definition.
    """
    found = graph._get_function(name)
    return found if hasattr(found, "graph") else None


@needs(
    f"{_GRAPH}._functions",
    without="functions in functions of a dataset are not known, and a resumed run reads its data again up to its place",
    instead=lambda graph: [],
)
def nested_functions(graph: Any) -> list[Any]:
    """All functions that a graph knows. It relies on `_functions` having them by name."""
    found = [called_function(graph, name) for name in graph._functions]
    return [function for function in found if function is not None]


@needs(
    "tensorflow.python.framework.func_graph:FuncGraph.deferred_external_captures",
    without="a call of a compiled step takes some microseconds longer",
    instead=lambda function: True,
)
def captures_vary(function: Any) -> bool:
    """Whether a concrete function asks at each call what it captured. It relies on a graph naming such captures."""
    return bool(function.graph.deferred_external_captures)


@needs(
    "tensorflow:__internal__.FuncGraph",
    without="a model that uses eager tensors of its own may fail where it is traced for a name or a shape",
    instead=lambda name: tf.Graph(),
)
def passing_graph(name: str) -> Any:
    """A graph to trace in and forget. It relies on `FuncGraph`, which takes eager tensors as `tf.function` does."""
    return tf.__internal__.FuncGraph(name)


@needs(
    "tensorflow:__internal__.tracking.Trackable",
    without="trainer.state keeps no other objects of TensorFlow's than modules, iterators and checkpoints",
    instead=lambda: (tf.Module, tf.data.Iterator, tf.train.Checkpoint),
)
def trackable_kinds() -> tuple[type, ...]:
    """The classes of what `tf.train.Checkpoint` saves. It relies on their having the base `Trackable`."""
    return (tf.__internal__.tracking.Trackable,)


@needs(
    "tensorflow.core.protobuf.trackable_object_graph_pb2:TrackableObjectGraph",
    without="weights from a checkpoint of tf.train.Checkpoint are found by its own keys instead of by their names",
    instead=lambda saved: {},
)
def names_in_checkpoint(saved: bytes) -> dict[str, str]:
    """The names of variables by their keys in a checkpoint of `tf.train.Checkpoint`.

    It relies on the message in which that keeps what it has saved of which object.

    Args:
        saved: the message.
    """
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph.FromString(saved)
    return {entry.checkpoint_key: entry.full_name for node in graph.nodes for entry in node.attributes}


# -- ops that Python code runs ----------------------------------------------------------------------------------------


@needs(
    "tensorflow.python.framework.op_def_registry:get",
    without="each op of unknown kind counts as one that may give another result when it runs again",
    instead=lambda kind: True,
)
def is_stateful(kind: str) -> bool:
    """Whether running an op twice may give two results; so for one of which TensorFlow says nothing."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(kind)
    return definition is None or definition.is_stateful


def _cannot_freeze(function: Any) -> Any:
    raise NotImplementedError(f"TensorFlow {tf.__version__} has no way to put constants in place of variables")


@needs(
    "tensorflow.python.framework.convert_to_constants:convert_variables_to_constants_v2",
    without="a model cannot be exported as one graph",
    instead=_cannot_freeze,
)
def with_constants(function: Any) -> Any:
    """A concrete function with constants in place of its variables.

    Raises:
        ValueError, NotImplementedError, tf.errors.OpError: it uses something that cannot be a constant.
    """
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    return convert_variables_to_constants_v2(function)


@needs(
    "tensorflow.python.grappler.tf_optimizer:OptimizeGraph",
    without="a model that is exported as one graph is not optimized",
    instead=lambda config, meta: meta.graph_def,
)
def optimized(config: tf.compat.v1.ConfigProto, meta: tf.compat.v1.MetaGraphDef) -> tf.compat.v1.GraphDef:
    """A graph as TensorFlow's optimizers leave it. It relies on "train_op" in `meta` naming what is asked for."""
    from tensorflow.python.grappler import tf_optimizer

    return tf_optimizer.OptimizeGraph(config, meta)
