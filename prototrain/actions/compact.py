"""A trained model as one file: an optimized graph in which the weights are constants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from prototrain.actions import reload_export
from prototrain.actions.saved_model import ServedModel
from prototrain.errors import ExperimentError, ModelError
from prototrain.system.tracebacks import first_line
from prototrain.tf_private import optimized, with_constants

_INPUTS, _OUTPUTS = reload_export.INPUTS, reload_export.OUTPUTS
_OPTIMIZERS = ("function", "pruning", "constfold", "arithmetic", "common_subgraph_elimination", "dependency")
"""Optimizers of TensorFlow whose graphs run on any device: none of them fuses operations for one device."""


def load_compact(path: str | Path) -> Callable[..., dict[str, tf.Tensor]]:
    """Load a file that ``prototrain action MODEL export --format compact`` has written.

    Returns:
        a function that takes the inputs by name, as tensors or arrays, and returns the outputs by name. Its attributes
        `inputs` and `outputs` are their names.

    Raises:
        ExperimentError: there is no such file, or it is not a compact export.
    """
    try:
        found: Callable[..., dict[str, tf.Tensor]] = reload_export.load_compact(str(path))
    except (OSError, tf.errors.OpError, DecodeError, ValueError) as error:
        raise ExperimentError(f"cannot load {path} as a compact export: {first_line(error)}") from error
    return found


def freeze(served: ServedModel) -> tf.compat.v1.GraphDef:
    """The graph of the default signature with the weights as constants, and with inputs and outputs by name.

    Raises:
        ModelError: the model uses something else that a graph alone cannot hold.
    """
    function = served.concrete()
    frozen = _without_variables(function)
    graph = tf.Graph()
    with graph.as_default():
        given = {
            tensor.name: tf.compat.v1.placeholder(tensor.dtype, tensor.shape, f"{_INPUTS}{name}")
            for name, tensor in zip(sorted(served.specs), frozen.inputs, strict=True)
        }
        names = sorted(function.structured_outputs)
        wanted = [tensor.name for tensor in frozen.outputs]
        definition = frozen.graph.as_graph_def()
        results = tf.graph_util.import_graph_def(definition, given, wanted, name="model")
        for name, result in zip(names, results, strict=True):
            tf.identity(result, f"{_OUTPUTS}{name}")
    return _optimized(graph, [f"{_OUTPUTS}{name}" for name in names])


def _without_variables(function: Any) -> Any:
    """A function with constants in place of variables.

    Raises:
        ModelError: it uses something else that a graph alone cannot hold.
    """
    known = {id(variable.handle) for variable in function.graph.variables}
    others = [outside for outside, _ in function.graph.captures if id(outside) not in known]
    if any(tensor.dtype in (tf.resource, tf.variant) for tensor in others):
        raise ModelError(
            "one graph cannot hold what the model uses besides operations and weights, such as a lookup table; export "
            "a SavedModel, or leave out the outputs that need it"
        )
    try:
        return with_constants(function)
    except (ValueError, NotImplementedError, tf.errors.OpError) as error:
        raise ModelError(
            f"the model cannot be exported as one graph: {first_line(error)}; export a SavedModel, which can hold more"
        ) from error


def _optimized(graph: tf.Graph, outputs: list[str]) -> tf.compat.v1.GraphDef:
    """A graph without operations that the outputs do not need, and with constant parts computed."""
    meta = tf.compat.v1.MetaGraphDef(graph_def=graph.as_graph_def())
    meta.collection_def["train_op"].node_list.value.extend(outputs)  # where it looks for the outputs
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.optimizers.extend(_OPTIMIZERS)
    return optimized(config, meta)
