"""The operations of a traced graph and of the functions that it calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any


def needed(graph: Any) -> list[Any]:
    """The operations that a graph's outputs are computed from; others may have to run as well, such as assertions."""
    found: dict[int, Any] = {}
    waiting = [tensor.op for tensor in graph.outputs]
    while waiting:
        op = waiting.pop()
        if id(op) not in found:
            found[id(op)] = op
            waiting += [tensor.op for tensor in op.inputs]
    return list(found.values())


def called(op: Any) -> list[Any]:
    """The graphs of the functions that an operation calls: branches, a loop's condition and body, a nested function."""
    definition = op.graph.op_def_for_type(op.type)  # kept by type, where those of the op are parsed anew each time
    if not any(attribute.type in ("func", "list(func)") for attribute in definition.attr):
        return []
    names = []
    for _, attribute in sorted(op.node_def.attr.items()):
        names += [attribute.func.name] * attribute.HasField("func")
        names += [function.name for function in attribute.list.func]
    functions = [_function(op.graph, name) for name in names]
    return [function.graph for function in functions if function is not None]


def _function(graph: Any, name: str) -> Any:
    from prototrain.private_api.graphs import called_function  # this module must not be what imports TensorFlow

    return called_function(graph, name)


def needed_everywhere(graph: Any) -> Iterator[Any]:
    """The operations that a graph's outputs are computed from, and those of the functions that they call."""
    for op in needed(graph):
        yield op
        for function in called(op):
            yield from needed_everywhere(function)


def all_operations(graph: Any) -> Iterator[Any]:
    """All operations of a graph, and of the functions that they call."""
    for op in graph.get_operations():
        yield op
        for function in called(op):
            yield from all_operations(function)


def short_digest(content: bytes) -> str:
    """The first characters of a hash."""
    return hashlib.sha256(content).hexdigest()[:8]
