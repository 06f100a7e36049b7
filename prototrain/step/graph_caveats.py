"""What in a traced step no checkpoint brings back: ops with a hidden state, variables that nobody saves.

It works by a list of what is known to repeat. A stateful op that is not on it counts as one that may not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from prototrain.step.variables import is_scratch
from prototrain.system.graphs import all_operations
from prototrain.system.resources import LOOKUP, is_changing_table, resource_uses
from prototrain.system.tracebacks import users_own

# Stateful for TensorFlow, and yet they repeat: what they read and write is in variables, or they keep nothing.
_REPEATS = re.compile(
    "|".join(
        (
            r"(Read|Assign|AssignAdd|AssignSub)VariableOp|VarHandleOp|VarIsInitializedOp|VariableShape|DestroyResourceOp",
            r"Resource(Gather|Scatter|Apply|SparseApply|StridedSlice)\w*|DisableCopyOnRead|GuaranteeConst|Empty",
            r"(Stateful)?PartitionedCall|RemoteCall|If|While|Case|TensorArray\w*|Stack\w*|DeviceIndex",
            r"Assert|CheckNumerics\w*|Print\w*|\w*Summary\w*",
            r"Iterator\w*|MakeIterator",
            r"Collective\w*|Nccl\w*|CrossReplicaSum|SyncDevice|Xla\w*",
            r"HashTableV2|AnonymousHashTable|InitializeTable\w*|LookupTable\w+",
            r"StatelessRandomGetAlg|CudnnRNN\w*|(Add|Take)Many\w*TensorsMap",
        )
    )
)
_OF_GENERATOR = re.compile(r"Stateful(Uniform\w*|StandardNormal\w*|TruncatedNormal|RandomBinomial)|Rng\w+")
_DRAWS = {
    "RandomStandardNormal": "tf.random.normal",
    "RandomUniform": "tf.random.uniform",
    "RandomUniformInt": "tf.random.uniform",
    "TruncatedNormal": "tf.random.truncated_normal",
    "ParameterizedTruncatedNormal": "tf.random.truncated_normal",
    "RandomShuffle": "tf.random.shuffle",
    "Multinomial": "tf.random.categorical",
    "RandomGamma": "tf.random.gamma",
    "RandomPoissonV2": "tf.random.poisson",
}
OWN_CLOCK = "prototrain_clock"
"""The name of ops that measure how long a step waits, and have no part in what it computes."""
_CURE = "use keras.random with a SeedGenerator, or a tf.random.stateless_* function of the step"


def graph_caveats(graph: Any, saved: Collection[Any]) -> list[str]:
    """Say what keeps a graph from repeating after a resume, in words; each kind and place once.

    Args:
        graph: traced, such as that of a step.
        saved: the variables that a checkpoint holds, towers' own copies.
    """
    found = [said for op in all_operations(graph) if (said := _caveat(op)) is not None]
    held = {id(variable.handle) for variable in saved}
    captured = {id(tensor) for tensor in graph.external_captures}
    for variable in graph.variables:
        if id(variable.handle) in captured and id(variable.handle) not in held and not is_scratch(variable):
            found.append(
                f"the step uses the variable {variable.name.split(':')[0]!r}, which no checkpoint holds; put it into "
                "trainer.state"
            )
    return list(dict.fromkeys(found))


def resource_caveats(graph: Any) -> list[tuple[Any, str]]:
    """Say of each iterator and changing table that a graph uses from outside what it means if nobody saves it.

    Returns:
        its handle, and the words.
    """
    found: dict[int, tuple[Any, str]] = {}
    for handle, op in resource_uses(graph):
        if op.type.startswith("IteratorGetNext"):
            what = "reads an iterator"
        elif op.type.startswith("LookupTable") and _is_changing(handle, op):
            what = "uses a table that can change"
        else:
            continue
        said = f"the step {what}{users_place(op.traceback)} that no checkpoint holds; put it into trainer.state"
        found.setdefault(id(handle), (handle, said))
    return list(found.values())


def _is_changing(handle: Any, op: Any) -> bool:
    if op.type == LOOKUP:
        return is_changing_table(handle, op)
    return str(op.type) != "LookupTableSizeV2"


def _caveat(op: Any) -> str | None:
    if op.name.rpartition("/")[2].startswith(OWN_CLOCK):
        return None
    return caveat_of(op.type, op.traceback) if op.graph.op_def_for_type(op.type).is_stateful else None


def caveat_of(kind: str, traceback: Iterable[Any]) -> str | None:
    """Say what keeps a stateful op from repeating after a resume, or None.

    Args:
        kind: of the op.
        traceback: frames of Python that it was made in, the outermost first.
    """
    if _REPEATS.fullmatch(kind) or _OF_GENERATOR.fullmatch(kind):
        return None  # a generator's state is a variable, which is looked for as such
    frames = list(traceback)
    where = users_place(frames)
    if kind == "Timestamp":
        return f"the step asks for the time{where}"
    if kind in _DRAWS:
        dropout = any(frame.name.startswith("dropout") for frame in frames)
        return f"the step draws from {'tf.nn.dropout' if dropout else _DRAWS[kind]}{where}; {_CURE}"
    if "PyFunc" in kind:
        return f"the step calls Python code{where}, whose state no checkpoint holds; write it with TensorFlow ops"
    return f"the step has the op {kind}{where}, which may have a state that no checkpoint holds"


def users_place(traceback: Iterable[Any]) -> str:
    """The innermost line of the user's own code among frames, such as " (model.py, line 12)", or nothing."""
    frames = users_own((frame.filename, frame.lineno) for frame in traceback)
    if not frames:
        return ""
    file, line = frames[-1]
    here = os.getcwd() + os.sep
    return f" ({os.path.relpath(file) if file.startswith(here) else Path(file).name}, line {line})"
