"""The rule that chooses how a run returns to its position in the training data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile
from typing import Any

import tensorflow as tf

from prototrain.data.pipeline import operations, shown, sources, stages
from prototrain.readers.flows import is_live
from prototrain.readers.order import order_of
from prototrain.tf_private import (
    cache_file,
    is_declared_unordered,
    is_seeded,
    reshuffles_each_pass,
    set_options,
    stage_functions,
)
from prototrain.tf_private import stage_name as name_of

PLAIN = frozenset(
    (
        *("_Range", "_Tensor", "_TensorSlice", "TextLine", "TFRecord", "FixedLengthRecord"),
        *("_Map", "_ParallelMap", "_Filter", "_ParseExample", "_Unbatch", "_Zip", "_Restructured"),
        *("_Batch", "_ParallelBatch", "_PaddedBatch", "_MapAndBatch"),
        *("_Prefetch", "_Repeat", "_Take", "_Skip", "_Shard", "_AutoShard", "_Options", "_AssertCardinality"),
        *("_FlatMap", "_Interleave", "_ParallelInterleave", "Cache", "_Shuffle"),
        "_Variant",  # the numbers of enumerate()
    )
)
"""Class names of the stages whose state TensorFlow saves completely."""
_SPREAD = ("_FlatMap", "_Interleave", "_ParallelInterleave", "Cache")  # drop a shuffle before the end of the pass
_ENDS_EARLY = ("_Take", "_Zip")  # may end before their sources
_IN_FUNCTIONS = (
    *("RangeDataset", "TensorDataset", "TensorSliceDataset", "TextLineDataset", "TFRecordDataset", "TFRecordDatasetV2"),
    *("FixedLengthRecordDatasetV2", "MapDataset", "FilterDataset", "BatchDatasetV2", "TakeDataset", "SkipDataset"),
    "FlatMapDataset",
)
_WITHOUT_STATE = (  # TensorFlow declares these stateful only to make them run, or run in order
    *("Assert", "Print", "PrintV2", "If", "While", "Case", "StatefulPartitionedCall", "LookupTableFindV2"),
    *("LookupTableSizeV2", "CheckNumerics", "CheckNumericsV2", "StatelessRandomGetAlg", "DeviceIndex"),
)
_HARMLESS_OPTIONS = ("autotune", "deterministic", "threading", "experimental_distribute", "dataset_name")


def choose_mode(dataset: tf.data.Dataset, wanted: str = "auto") -> tuple[str, str]:
    """Return how a run returns to its position in a dataset, and the reason if it is not "iterator".

    - "iterator": plain stages with at most one shuffle, whose iterator state TensorFlow saves completely;
    - "replay": other data that repeats under its seed;
    - "restart": data that does not repeat.
    """
    if wanted != "auto":
        return wanted, "" if wanted == "iterator" else "trainer.data_position"
    reason = next(_why_restart(dataset), "")
    if reason:
        return "restart", reason
    reason = next(_why_replay(dataset), "")
    return "replay" if reason else "iterator", reason


def _why_restart(dataset: tf.data.Dataset) -> Iterator[str]:
    if dataset.options().deterministic is False:
        yield "its options have deterministic=False"
    for stage in stages(dataset):
        if is_live(stage) or name_of(stage) == "_DataService":
            yield "it is live"
        if _is_unordered(stage):
            yield f"{shown(stage)} has deterministic=False"
        if name_of(stage) in ("_Shuffle", "_Random") and not is_seeded(stage):
            yield "it is shuffled without a seed (call shuffle() in datasets(), or give it a seed)"


def _why_replay(dataset: tf.data.Dataset) -> Iterator[str]:
    for name in set_options(dataset.options()):
        if name not in _HARMLESS_OPTIONS:
            yield f"it has the option {name}"
    shuffles = 0
    for stage in stages(dataset):
        shuffles += name_of(stage) == "_Shuffle"
        if name_of(stage) not in PLAIN:
            yield f"stage {shown(stage)}"
        if is_file_cache(stage):
            yield "it is cached in a file"  # restoring the iterator without that file would kill the process
        for op in operations(stage):
            if is_random(op):
                yield f"{shown(stage)} draws random numbers ({op.type}); tf.random.stateless_* keep the place"
            elif "PyFunc" in op.type or op.type == "GeneratorDataset":
                yield "Python code makes it"
            elif op.type not in _IN_FUNCTIONS and ("Dataset" in op.type or _has_state(op)):
                yield f"the function of {shown(stage)} runs {op.type}"
        if any(tensor.dtype == tf.variant for one in stage_functions(stage) for tensor in one.captured_inputs):
            yield f"the function of {shown(stage)} reads another dataset"
    if shuffles > 1:
        yield f"{shuffles} shuffles"
    yield from _above_shuffle(dataset)


def _above_shuffle(stage: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the reasons why the stages above a shuffle, the last one first, make its saved state incomplete."""
    name = name_of(stage)
    if name == "_Shuffle":
        yield from (f"a shuffle below {other.strip('_')}" for other in above if other in _SPREAD)
        if "_Repeat" in dropwhile(lambda other: other not in _ENDS_EARLY, above):
            yield "a shuffle that is repeated and cut off"  # threads decide how far it is read past the cut
    for source in sources(stage):
        yield from _above_shuffle(source, (*above, name))


def is_random(op: Any) -> bool:
    """Return whether an op draws random numbers from its own stateful generator."""
    return bool(op.op_def is not None and op.op_def.is_stateful and "seed2" in op.node_def.attr)


def is_python(dataset: tf.data.Dataset) -> bool:
    """Return whether Python code produces the data."""
    return any("PyFunc" in op.type for stage in stages(dataset) for op in operations(stage))


def reshuffles(dataset: tf.data.Dataset) -> bool:
    """Return whether each iteration over a dataset has a different order."""
    return any(map(_is_reshuffled, stages(dataset)))


def _is_reshuffled(stage: Any) -> bool:
    if name_of(stage) in ("_Shuffle", "_Random"):
        return reshuffles_each_pass(stage)
    # The choices of `choose_from_datasets` have no Python object, and may be shuffled.
    return order_of(stage) is not None or name_of(stage) == "_DirectedInterleave"


def draws(stage: Any) -> bool:
    """Return whether a stage or its functions have a random generator."""
    if _is_reshuffled(stage) or name_of(stage) in ("_Shuffle", "_Random"):
        return True
    return any(is_random(op) or op.type.startswith("ShuffleDataset") for op in operations(stage))


def shares_generators(one: tf.data.Dataset, other: tf.data.Dataset) -> bool:
    """Return whether two datasets share a stage that draws random numbers."""
    known = {id(stage) for stage in stages(other)}
    return any(id(stage) in known and draws(stage) for stage in stages(one))


def is_function_of_element(stage: Any) -> bool:
    """Return whether a stage keeps the order, and its output depends on the element only."""
    return not _is_unordered(stage) and not any(map(_has_state, operations(stage)))


def is_file_cache(stage: Any) -> bool:
    """Return whether a stage is a `cache(filename)`."""
    return name_of(stage) == "Cache" and tf.get_static_value(cache_file(stage)) != b""


def _has_state(op: Any) -> bool:
    return op.type not in _WITHOUT_STATE and (op.op_def is None or op.op_def.is_stateful)


def _is_unordered(stage: Any) -> bool:
    """Return whether a stage has ``deterministic=False``."""
    if name_of(stage) != "_ParallelInterleave":
        return is_declared_unordered(stage)
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(stage), external_state_policy=1, strip_device_assignment=True
    )
    nodes = tf.compat.v1.GraphDef.FromString(graph.numpy()).node
    return any(one.op.startswith("ParallelInterleave") and one.attr["deterministic"].s == b"false" for one in nodes)
