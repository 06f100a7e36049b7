"""The rule that chooses how a run returns to its place in the training data, and what it asks of a dataset.

`data_position` gives "iterator" for plain pipelines with at most one shuffle, "restart" for data that does not repeat,
and "replay" for the rest. What a replay reads is compared with what was read before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.data.stages import graph_of, name_of, nodes, operations, shown, sources, stages
from prototrain.readers import is_live
from prototrain.readers.order import order_of
from prototrain.tf_private import (
    cache_file,
    has_each_pass_anew,
    is_declared_unordered,
    is_seeded,
    set_options,
    stage_functions,
)

PLAIN = frozenset(
    (
        *("_Range", "_Tensor", "_TensorSlice", "TextLine", "TFRecord", "FixedLengthRecord"),
        *("_Map", "_ParallelMap", "_Filter", "_ParseExample", "_Unbatch", "_Zip", "_Restructured"),
        *("_Batch", "_ParallelBatch", "_PaddedBatch", "_MapAndBatch"),
        *("_Prefetch", "_Repeat", "_Take", "_Skip", "_Shard", "_AutoShard", "_Options", "_AssertCardinality"),
        *("_FlatMap", "_Interleave", "_ParallelInterleave", "Cache", "_Shuffle"),
    )
)
"""The stages whose state TensorFlow saves whole, by the names of their classes."""
UNKNOWN_FILE = "(not known)"
"""Stands for the file of a cache whose name no constant has."""
_SPREAD = ("_FlatMap", "_Interleave", "_ParallelInterleave", "Cache")  # drop a shuffle before the pass has ended
_ENDS_EARLY = ("_Take", "_Zip")  # may end before what they read from
_CHANGING = ("_DataService", "_Snapshot", "_CopyToDevice")
_PARALLEL = ("_ParallelMap", "_MapAndBatch", "_ParallelInterleave")
_IN_FUNCTIONS = (
    *("RangeDataset", "TensorDataset", "TensorSliceDataset", "TextLineDataset", "TFRecordDataset", "TFRecordDatasetV2"),
    *("FixedLengthRecordDatasetV2", "MapDataset", "FilterDataset", "BatchDatasetV2", "TakeDataset", "SkipDataset"),
    "FlatMapDataset",
)
_WITHOUT_STATE = (  # although TensorFlow declares them stateful, so that they run, or run in order
    *("Assert", "Print", "PrintV2", "If", "While", "Case", "StatefulPartitionedCall", "LookupTableFindV2"),
    *("LookupTableSizeV2", "CheckNumerics", "CheckNumericsV2", "StatelessRandomGetAlg", "DeviceIndex"),
)
_HIDDEN = frozenset(("Const", "_Retval", "_Arg", "Identity", "NoOp", "RangeDataset", "TensorDataset", "RewriteDataset"))
_HARMLESS_OPTIONS = ("autotune", "deterministic", "threading", "experimental_distribute", "dataset_name")
_STATELESS = "use tf.random.stateless_* or tf.image.stateless_random_* with a seed from Dataset.enumerate()"


def data_position(dataset: tf.data.Dataset, wanted: str = "auto") -> tuple[str, str]:
    """Choose how a run returns to its place in a dataset.

    Args:
        dataset: the training dataset.
        wanted: ``trainer.data_position``: "auto", or the mode.

    Returns:
        the mode, "iterator", "replay" or "restart", and why it is not "iterator".
    """
    if wanted != "auto":
        return wanted, "" if wanted == "iterator" else "trainer.data_position"
    if (reason := next(_does_not_repeat(dataset), None)) is not None:
        return "restart", reason
    if (reason := next(_is_not_plain(dataset), None)) is not None:
        return "replay", reason
    return "iterator", ""


def _does_not_repeat(dataset: tf.data.Dataset) -> Iterator[str]:
    if dataset.options().deterministic is False:
        yield "its options have deterministic=False"
    for stage in stages(dataset):
        if is_live(stage):
            yield "it is live"
        if name_of(stage) in _CHANGING:
            yield f"the stage {shown(stage)} does not repeat"
        if is_unordered(stage):
            yield f"{shown(stage)} has deterministic=False"
        if not _has_seed(stage):
            yield "it is shuffled without a seed (call shuffle() in datasets(), or give it a seed)"
        random_ops = [op for op in operations(stage) if is_random(op)]
        if random_ops and name_of(stage) in _PARALLEL:
            yield f"{shown(stage)} draws random numbers in parallel ({random_ops[0].type}); {_STATELESS}"
        if any(not op.get_attr("seed") and not op.get_attr("seed2") for op in random_ops):
            yield f"{shown(stage)} draws random numbers without a seed"


def _is_not_plain(dataset: tf.data.Dataset) -> Iterator[str]:
    for name in set_options(dataset.options()):
        if name not in _HARMLESS_OPTIONS:
            yield f"it has the option {name}"
    for stage in stages(dataset):
        if name_of(stage) == "_Variant":
            if not hidden_ops(stage) or not hidden_ops(stage) <= _HIDDEN:
                yield "it has a stage that TensorFlow hides"
        elif name_of(stage) not in PLAIN:
            yield f"stage {shown(stage)}"
        for op in operations(stage):
            if is_random(op):
                yield f"{shown(stage)} draws random numbers ({op.type}); {_STATELESS}"
            elif "PyFunc" in op.type or op.type == "GeneratorDataset":
                yield "Python code makes it"
            elif op.type not in _IN_FUNCTIONS and ("Dataset" in op.type or _has_state(op)):
                yield f"the function of {shown(stage)} runs {op.type}"
        if any(tensor.dtype == tf.variant for one in stage_functions(stage) for tensor in one.captured_inputs):
            yield f"the function of {shown(stage)} reads another dataset"
    if caches := file_caches(dataset):
        # Restored without that file, the iterator would end the whole process.
        yield f"it is cached in the file {caches[0]}"
    shuffles = [stage for stage in stages(dataset) if name_of(stage) == "_Shuffle"]
    if len(shuffles) > 1:
        yield f"{len(shuffles)} shuffles"
    yield from _above_shuffle(dataset, (), ())


def _above_shuffle(stage: Any, above: tuple[str, ...], below_end: tuple[str, ...]) -> Iterator[str]:
    """Why the state of a shuffle is not whole within a pass: because of what stands above it.

    Args:
        stage: where to look, and below.
        above: the stages above it.
        below_end: those of them that stand below one that may end early: they have no end themselves.
    """
    name = name_of(stage)
    if name == "_Shuffle":
        yield from (f"a shuffle below {other.strip('_')}" for other in above if other in _SPREAD)
        if "_Repeat" in below_end:
            yield "a shuffle that is repeated and cut off"  # how far it was read ahead of the cut is left to threads
    cut = any(other in _ENDS_EARLY for other in above)
    for source in sources(stage):
        yield from _above_shuffle(source, (*above, name), (*below_end, name) if cut else below_end)


# -- stages, and the ops of their functions ---------------------------------------------------------------------------


def is_random(op: Any) -> bool:
    """Whether an op draws random numbers from a generator that it keeps."""
    return bool(op.op_def is not None and op.op_def.is_stateful and "seed2" in op.node_def.attr)


def is_python(dataset: tf.data.Dataset) -> bool:
    """Whether Python code makes the data."""
    return any("PyFunc" in op.type for stage in stages(dataset) for op in operations(stage))


def is_unordered(stage: Any) -> bool:
    """Whether a stage, or one in its functions, has ``deterministic=False``."""
    if is_declared_unordered(stage):
        return True
    if name_of(stage) == "_ParallelInterleave":  # only its graph tells
        made = [node for node in nodes(stage) if node.op.startswith("ParallelInterleaveDataset")]
        return not made or any(node.attr["deterministic"].s == b"false" for node in made)
    with_attribute = (op for op in operations(stage) if "deterministic" in op.node_def.attr)
    return any(op.get_attr("deterministic") == b"false" for op in with_attribute)


def hidden_ops(stage: Any) -> set[str]:
    """The ops of a stage of which TensorFlow keeps no object, such as the choices of `choose_from_datasets`."""
    graph = graph_of(stage) if name_of(stage) == "_Variant" else None
    if graph is None:
        return set()
    found = [graph.node, *(function.node_def for function in graph.library.function)]
    return {node.op for among in found for node in among}


def is_reshuffled(stage: Any) -> bool:
    """Whether each reading of a stage gives another order, or other numbers."""
    own = name_of(stage) in ("_Shuffle", "_Random") and has_each_pass_anew(stage)
    return own or order_of(stage) is not None or any("Shuffle" in op or "Random" in op for op in hidden_ops(stage))


def draws(stage: Any) -> bool:
    """Whether a stage has a random generator, or its functions have one."""
    if is_reshuffled(stage) or name_of(stage) in ("_Shuffle", "_Random"):
        return True
    return any(is_random(op) or op.type.startswith("ShuffleDataset") for op in operations(stage))


def reshuffles(dataset: Any) -> bool:
    """Whether each reading of a dataset gives another order."""
    return any(map(is_reshuffled, stages(dataset)))


def _has_seed(stage: Any) -> bool:
    return name_of(stage) not in ("_Shuffle", "_Random") or is_seeded(stage)


def shares_generators(one: tf.data.Dataset, other: tf.data.Dataset) -> bool:
    """Whether two datasets have a stage in common that draws random numbers."""
    known = {id(stage) for stage in stages(other)}
    return any(id(stage) in known and draws(stage) for stage in stages(one))


def is_function_of_element(stage: Any) -> bool:
    """Whether what a stage makes of an element depends on the element only, and keeps the order."""
    return not is_unordered(stage) and not any(map(_has_state, operations(stage)))


def _has_state(op: Any) -> bool:
    return op.type not in _WITHOUT_STATE and (op.op_def is None or op.op_def.is_stateful)


def file_caches(dataset: tf.data.Dataset) -> list[str]:
    """The names that a dataset gives to the files of its `cache(filename)`."""
    names = set()
    for stage in stages(dataset):
        if name_of(stage) == "Cache":
            tensor = cache_file(stage)
            value = None if tensor is None else tf.get_static_value(tensor)
            names.add(UNKNOWN_FILE if value is None else tf.compat.as_text(np.asarray(value).item()))
    return sorted(names - {""})  # in memory: an empty name
