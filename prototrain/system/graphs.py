"""What is in a traced graph, and in the functions that it calls."""

from __future__ import annotations

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
    names = []
    for attribute in op.node_def.attr.values():
        names += [attribute.func.name] * attribute.HasField("func")
        names += [function.name for function in attribute.list.func]
    functions = [op.graph._get_function(name) for name in names]
    return [function.graph for function in functions if function is not None]


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
