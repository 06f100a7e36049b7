"""What is in a traced graph, and in the functions that it calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

_IN_ANY_ORDER = (
    *("Assert", "CheckNumerics", "CheckNumericsV2", "DeviceIndex", "LookupTableFindV2", "LookupTableSizeV2"),
    *("PrintV2", "StatelessRandomGetAlg"),
)
"""Ops that TensorFlow runs in the order in which they were made, and that change nothing for those behind them."""
_CHOOSES = ("If", "StatelessIf", "Case", "StatelessCase")  # whose first input says which function is called
_CALLS = (*_CHOOSES, "PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile")


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


def value_digest(graph: Any, captured: Mapping[str, str] | None = None) -> str:
    """A digest of what a traced function computes and does, whatever the order in which independent ops were made.

    So it is the same where Python code goes through a set, whose order is another one in each process. Ops that nothing
    comes of do not count, nor do names, which count up by process.

    Args:
        graph: of the function.
        captured: what stands for what the graph uses from outside, by the names of its placeholders.
    """
    outside = dict.fromkeys((inside.op.name for _, inside in graph.captures), "captured")
    arguments = [tensor.op.name for tensor in graph.inputs if tensor.op.name not in outside]
    given = {name: f"argument {number}" for number, name in enumerate(arguments)}
    return _value_digest(graph, {**outside, **(captured or {}), **given})


def _value_digest(graph: Any, given: Mapping[str, str], outputs: list[Any] | None = None) -> str:
    """Each op is known by a digest of its kind and of those that it needs, and what is given by its own words.

    Args:
        graph: of the function.
        given: what stands for its inputs, by the names of their placeholders.
        outputs: those that count, if not all.
    """
    digests = dict(given)
    before: dict[str, set[str]] = {}  # by op, what must have been done ahead of it

    def value(tensor: Any) -> str:
        return f"{digests.get(tensor.op.name, 'later')}:{tensor.value_index}"

    for op in _done_in_order(graph):
        before[op.name] = set()
        for ahead in op.control_inputs:
            before[op.name] |= {digests[ahead.name]} if _has_effects(ahead) else before[ahead.name]
        if op.name not in given:
            parts = [op.type, *_given(op, [value(tensor) for tensor in op.inputs]), *sorted(before[op.name])]
            digests[op.name] = short_digest(" ".join(parts).encode())
    done = sorted(digests[op.name] for op in graph.control_outputs)
    return short_digest(" ".join([*map(value, graph.outputs if outputs is None else outputs), "and", *done]).encode())


def _done_in_order(graph: Any) -> list[Any]:
    """The operations that run when a function is called, each behind those that it needs."""
    found: dict[str, Any] = {}
    seen: set[str] = set()
    waiting = [*(tensor.op for tensor in graph.outputs), *graph.control_outputs]
    while waiting:
        op = waiting[-1]
        seen.add(op.name)
        needs = [one for one in (*op.control_inputs, *(tensor.op for tensor in op.inputs)) if one.name not in seen]
        waiting += needs
        if not needs:
            found.setdefault(op.name, op)
            waiting.pop()
    return list(found.values())


def _has_effects(op: Any) -> bool:
    """Whether what is done behind an op may depend on its having been done."""
    if functions := called(op):
        return any(_has_effects(inner) for function in functions for inner in function.get_operations())
    return op.type not in _IN_ANY_ORDER and bool(op.graph.op_def_for_type(op.type).is_stateful)


def _given(op: Any, inputs: list[str]) -> list[str]:
    """What an op works with: its inputs, its attributes, and what the functions do that it calls.

    The order in which a function takes what it uses from outside follows from that of its ops. So of a call, inputs
    count by what becomes of them there.
    """
    functions = called(op)
    if op.type == "Assert":
        return inputs[:1]  # the others are what it says then, with names in it
    if op.type not in _CALLS or not functions:
        by_number = [{tensor.op.name: f"input {i}" for i, tensor in enumerate(graph.inputs)} for graph in functions]
        return [*inputs, *_attributes(op), *map(_value_digest, functions, by_number)]
    own, passed = (inputs[:1], inputs[1:]) if op.type in _CHOOSES else ([], inputs)
    counting: list[list[Any] | None] = [None] * len(functions)
    if op.type.endswith("While"):
        body = functions[0]
        changing = [i for i, (then, now) in enumerate(zip(body.inputs, body.outputs, strict=False)) if then is not now]
        own, counting[0] = [inputs[i] for i in changing], [body.outputs[i] for i in changing]
        passed = [f"variable {i}" if i in changing else token for i, token in enumerate(inputs)]
    names = [[tensor.op.name for tensor in graph.inputs] for graph in functions]
    given = [dict(zip(of, passed, strict=False)) for of in names]
    return own + list(map(_value_digest, functions, given, counting))


def _attributes(op: Any) -> list[str]:
    given = op.node_def.attr  # which is parsed anew each time
    plain = [name for name in sorted(given) if not (given[name].HasField("func") or given[name].list.func)]
    return [f"{name}={_content(given[name])}" for name in plain if counts(name)]


def counts(name: str) -> bool:
    """Whether an attribute is more than a name, which counts up by process."""
    return not name.startswith("_") and name not in ("token", "shared_name", "container")


def _content(attribute: Any) -> str:
    return short_digest(attribute.SerializeToString(deterministic=True))


def short_digest(content: bytes) -> str:
    """The first characters of a hash."""
    return hashlib.sha256(content).hexdigest()[:8]
