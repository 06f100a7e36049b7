"""Stages of which TensorFlow keeps no object, such as those below the choices of `choose_from_datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from prototrain.data.stages import graph_of, name_of
from prototrain.data.worth import FIRST_SEEDS
from prototrain.system.graphs import counts, short_digest


def hidden_nodes(stage: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """What is hidden in a stage, as nodes of a graph and of the functions in it; nothing in most stages.

    Yields:
        a node, and those that it stands among, by name.
    """
    if name_of(stage) == "_Variant" and (graph := graph_of(stage)) is not None:
        for among in (graph.node, *(function.node_def for function in graph.library.function)):
            by_name = {node.name: node for node in among}
            yield from ((node, by_name) for node in among)


def hidden_constant(node: Any, number: int, among: Mapping[str, Any]) -> Any:
    """The value of an input of a hidden node, or None."""
    given = among.get(node.input[number].split(":")[0]) if number < len(node.input) else None
    return None if given is None or given.op != "Const" else tf.make_ndarray(given.attr["value"].tensor)


def has_hidden_seed(node: Any, among: Mapping[str, Any]) -> bool:
    """Whether a hidden dataset has a seed, if it is one that draws; otherwise True."""
    if node.op not in FIRST_SEEDS:
        return True
    return any(hidden_constant(node, FIRST_SEEDS[node.op] + place, among) for place in (0, 1))


def is_hidden_order_anew(node: Any) -> bool:
    """Whether each reading of a hidden dataset gives another order, or other numbers."""
    return any(node.attr[name].b for name in ("reshuffle_each_iteration", "rerandomize_each_iteration"))


def hidden_digest(stage: Any) -> str | None:
    """A digest of what is hidden in a stage, the same in every process; None if nothing is.

    Without the names in metadata and of generators, which count up by process.
    """
    graph = graph_of(stage) if name_of(stage) == "_Variant" else None
    if graph is None:
        return None
    functions = {function.signature.name: function for function in graph.library.function}

    def of_function(name: str) -> str:
        function = functions.get(name)
        given = [] if function is None else [argument.name for argument in function.signature.input_arg]
        return "" if function is None else digest(function.node_def, given, sorted(function.ret.items()))

    def digest(nodes: Any, *more: Any) -> str:
        return short_digest("\n".join([*map(text, nodes), *map(repr, more)]).encode())

    def text(node: Any) -> str:
        parts = [node.op, node.name, *node.input]
        for name, value in sorted(node.attr.items()):
            if value.HasField("func") or value.list.func:
                parts += [of_function(one.name) for one in (value.func, *value.list.func)]
            elif counts(name) and name != "metadata" and value.tensor.dtype != tf.resource.as_datatype_enum:
                parts.append(f"{name}={short_digest(value.SerializeToString(deterministic=True))}")
        return " ".join(parts)

    return digest(graph.node)
