"""Resources that a traced graph uses and that are no variables: iterators, lookup tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from prototrain.system.graphs import called, value_digest

LOOKUP = "LookupTableFindV2"
SEVERAL = "v3 "
"""Ahead of a digest of several tables, since earlier versions had them in another order."""
_LARGEST = 5_000_000  # entries of a table that are looked at
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


def table_digest(graphs: Iterable[Any]) -> str | None:
    """A digest of the entries of the lookup tables from outside of graphs that cannot be changed; None without any.

    Args:
        graphs: of traced functions.
    """
    looking = list(graphs)
    uses = {id(table): (table, op) for graph in looking for table, op in resource_uses(graph) if op.type == LOOKUP}
    found = {key: _entries(*use) for key, use in uses.items() if not is_changing_table(*use)}
    if not found:
        return None
    if len(found) == 1:
        return sha256("".join(found.values()).encode()).hexdigest()[:12]
    digests = []
    for graph in looking:
        names = {inside.op.name: found[id(outside)] for outside, inside in graph.captures if id(outside) in found}
        digests += sorted(value_digest(graph, {name: "this"}) + entries for name, entries in names.items())
    return SEVERAL + sha256("".join(digests).encode()).hexdigest()[:12]


def _entries(table: Any, lookup: Any) -> str:
    """A digest of the keys of a table and their values, in whatever order it gives them."""
    import tensorflow as tf

    # Of a table that is filled somewhere else, as in a function of the data, there is nothing to be seen here.
    types = {name: lookup.get_attr(of) for name, of in (("Tkeys", "Tin"), ("Tvalues", "Tout"))}
    with tf.init_scope():
        try:
            size = int(tf.raw_ops.LookupTableSizeV2(table_handle=table))
            if size > _LARGEST:
                return f"{size} entries"
            pairs = tf.raw_ops.LookupTableExportV2(table_handle=table, **types)
        except tf.errors.OpError:
            return "not known"
    keys, values = (part.numpy().tolist() for part in pairs)
    return sha256(repr(sorted(zip(keys, values, strict=True))).encode()).hexdigest()
