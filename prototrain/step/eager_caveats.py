"""What in a step that Python runs no checkpoint brings back, seen while TensorFlow runs it.

It stands on TensorFlow's op callbacks, and on the definitions of the functions that are called.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from prototrain.private_api.datasets import iterator_handle
from prototrain.private_api.graphs import function_definition, is_stateful, seeing_ops
from prototrain.private_api.graphs import no_ops_seen as unwatched
from prototrain.private_api.of_keras import KerasVariable
from prototrain.step.graph_caveats import caveat_of, users_place
from prototrain.towers import components

__all__ = ["saved_handles", "unwatched", "watching"]

_CHANGES = re.compile(
    r"Assign(Add|Sub)?VariableOp|Resource(Scatter|Apply|SparseApply|StridedSliceAssign)\w*"
    r"|RngReadAndSkip|RngSkip|Stateful(Uniform\w*|StandardNormal\w*|TruncatedNormal|RandomBinomial)"
)
_CHANGES_TABLE = re.compile(r"LookupTable(Insert|Remove|Import)V2")
_BUILDS = re.compile(r"\w*Dataset\w*|\w*Iterator\w*|\w*SeedGenerator\w*|\w*MemoryCache\w*|Delete\w*")


def saved_handles(saved: Collection[Any]) -> list[Any]:
    """TensorFlow's handles of what a checkpoint holds.

    Args:
        saved: variables, iterators, and whatever else TensorFlow can track, with all that it consists of.
    """
    found = []
    for entry in saved:
        of_keras = isinstance(entry, KerasVariable)
        for part in tf.train.TrackableView(entry.value if of_keras else entry).descendants():
            if isinstance(part, tf.Variable):
                found += [each.handle for each in components(part)]
            elif isinstance(part, tf.data.Iterator):
                found.append(iterator_handle(part))
            elif isinstance(part, tf.lookup.experimental.MutableHashTable | tf.lookup.experimental.DenseHashTable):
                found.append(part.resource_handle)
    return found


@contextmanager
def watching(saved: Collection[Any]) -> Iterator[list[str]]:
    """Note what the ops that are run in the context draw on and change that no checkpoint brings back.

    Args:
        saved: handles of what the checkpoint holds.

    Returns:
        what was found so far, in words, as in `graph_caveats`; each kind and place once.
    """
    known = {id(handle): handle for handle in saved}
    found: list[str] = []

    def see(
        kind: str | bytes, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is not None:
            return  # an op that is being traced will be met when its function is called
        known.update({id(tensor): tensor for tensor in outputs if tensor.dtype == tf.resource})  # made in the step
        name = kind.decode() if isinstance(kind, bytes) else kind
        handles = [tensor if tensor.dtype == tf.resource else None for tensor in inputs]
        for each, positions in _ops(name, len(handles)):
            used = [handles[position] for position in positions if position is not None]
            said = _caveat(each, any(handle is not None and id(handle) not in known for handle in used))
            if said is not None and said not in found:
                found.append(said)

    with seeing_ops(see):
        yield found


def _ops(name: str, inputs: int) -> Iterator[tuple[str, list[int | None]]]:
    """The ops behind an op or a function that is given so many inputs: the kind of each, and which of these it gets."""
    definition = function_definition(name)
    if definition is None:
        yield name, list(range(inputs))
        return
    arguments = {argument.name: index for index, argument in enumerate(definition.signature.input_arg)}
    for node in definition.node_def:
        given = [arguments.get(text.split(":")[0]) for text in node.input]
        functions = [attribute.func.name for attribute in node.attr.values() if attribute.HasField("func")]
        functions += [function.name for attribute in node.attr.values() for function in attribute.list.func]
        functions += [node.op] * (function_definition(node.op) is not None)
        passed = given[1:] if node.op in _CHOOSE else given
        for function in functions:
            for kind, positions in _ops(function, len(passed)):
                yield kind, [passed[each] if each is not None and each < len(passed) else None for each in positions]
        if not functions:
            yield node.op, given


_CHOOSE = ("If", "StatelessIf", "Case", "StatelessCase")  # whose first input is not for the function


def _caveat(kind: str, uses_unsaved: bool) -> str | None:
    if _CHANGES.fullmatch(kind):
        what = "changes a variable"
    elif _CHANGES_TABLE.fullmatch(kind):
        what = "changes a table"
    elif kind.startswith("IteratorGetNext"):
        what = "reads an iterator"
    elif _BUILDS.fullmatch(kind) or not is_stateful(kind):
        return None
    else:
        return caveat_of(kind, traceback.extract_stack())
    if not uses_unsaved:
        return None
    return (
        f"the step {what}{users_place(traceback.extract_stack())} that no checkpoint holds; put it into trainer.state"
    )
