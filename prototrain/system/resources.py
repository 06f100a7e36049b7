"""Resources that a traced graph uses and that are no variables: iterators, lookup tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prototrain.system.graphs import called

_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")  # whose first input is not for the function


def resource_uses(graph: Any) -> Iterator[tuple[Any, Any]]:
    """The resources from outside of a graph, but for its variables, and the operations that use them.

    Args:
        graph: of a traced function.

    Yields:
        the resource's handle, and an operation, in the graph or in a function that it calls.
    """
    of_variables = {id(variable.handle) for variable in graph.variables}
    for outside, inside in graph.captures:
        if str(inside.dtype.name) == "resource" and id(outside) not in of_variables:
            for op in _users(inside):
                yield outside, op


def _users(tensor: Any) -> Iterator[Any]:
    for op in tensor.consumers():
        functions = called(op)
        if not functions:
            yield op
        first = 1 if op.type in _BRANCHES else 0
        places = [place - first for place, given in enumerate(op.inputs) if given is tensor]
        for function in functions:
            for place in places:
                if 0 <= place < len(function.inputs):
                    yield from _users(function.inputs[place])


def is_changing_table(handle: Any, lookup: Any) -> bool:
    """Whether a lookup table can be changed once it has its entries.

    Args:
        handle: of the table, outside of any graph.
        lookup: an operation that looks into it.
    """
    import tensorflow as tf

    keys, values = (tf.zeros([0], lookup.get_attr(name)) for name in ("Tin", "Tout"))
    try:
        with tf.init_scope():
            tf.raw_ops.LookupTableInsertV2(table_handle=handle, keys=keys, values=values)
    except tf.errors.UnimplementedError:
        return False  # nothing can be put into it, not even nothing
    except (tf.errors.OpError, TypeError):
        return True
    return True
