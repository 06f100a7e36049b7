"""What is in a traced graph, and in the functions that it calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
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
    for attribute in op.node_def.attr.values():
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


def whole_digest(graph: Any, captured: Mapping[str, str] | None = None) -> str:
    """As `graph_digest`, also of which outputs of ops are used, and of the outputs of the graph.

    Args:
        graph: of a traced function.
        captured: what stands for what the graph uses from outside, by the names of its placeholders.
    """
    return _digest(graph, captured or {}, is_whole=True)


def graph_digest(graph: Any) -> str:
    """A digest of a graph's ops, their attributes and constants; names, which count up by process, are left out.

    Positions in data that earlier versions have saved are compared by it.
    """
    return _digest(graph, {}, is_whole=False)


def _digest(graph: Any, captured: Mapping[str, str], *, is_whole: bool) -> str:
    parts: list[str] = []
    order: dict[str, int] = {}
    for op in graph.get_operations():
        attributes, given = [], op.node_def.attr  # which is parsed anew each time
        for name in sorted(given):
            attribute = given[name]
            functions = [attribute.func] if attribute.HasField("func") else attribute.list.func
            if functions:
                nested = [_function(graph, function.name) for function in functions]
                digests = [
                    _digest(function.graph, {}, is_whole=is_whole) if function is not None else ""
                    for function in nested
                ]
                attributes.append(f"{name}={','.join(digests)}")
            elif not name.startswith("_") and name not in ("token", "shared_name", "container"):
                attributes.append(f"{name}={short_digest(attribute.SerializeToString(deterministic=True))}")
        inputs = [_origin(tensor, order, is_whole=is_whole) for tensor in op.inputs]
        order[op.name] = len(order)
        parts.append(f"{op.type}({','.join(inputs)}) {' '.join(attributes)}{captured.get(op.name, '')}")
    if is_whole:
        parts.append(",".join(_origin(tensor, order, is_whole=True) for tensor in graph.outputs))
    return short_digest("\n".join(parts).encode())


def _origin(tensor: Any, order: Mapping[str, int], *, is_whole: bool) -> str:
    number = str(order.get(tensor.op.name, "captured"))
    return f"{number}:{tensor.value_index}" if is_whole else number


def short_digest(content: bytes) -> str:
    """The first characters of a hash."""
    return hashlib.sha256(content).hexdigest()[:8]
