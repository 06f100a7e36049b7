"""tf.data pipelines: their stages, their description, and the choice of the mode of the data position."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import dropwhile, zip_longest
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.readers.flows import is_live
from prototrain.readers.order import ABOUT, order_of
from prototrain.system.files import short_digest
from prototrain.tf_private import (
    all_operations,
    cache_file,
    is_declared_unordered,
    is_seeded,
    reshuffles_each_pass,
    set_options,
    stage_functions,
    stage_inputs,
    stage_name,
    stage_settings,
    wrapped_dataset,
)

_LOOKED_AT = 20_000  # file names to check in a list: checking is slow on a network
_HASHED_BYTES = 64 * 2**20  # larger contents are described by shape only: hashing them would delay every start


def stage_label(stage: Any) -> str:
    """Return the display name of a stage, such as ``ParallelMap``."""
    return stage_name(stage).strip("_")


def sources(stage: Any) -> list[Any]:
    """Return the stages that a stage reads from."""
    if wrapped_dataset(stage) is not None:
        return [wrapped_dataset(stage)]
    inputs = stage_inputs(stage)
    held = [value for value in vars(stage).values() if isinstance(value, tf.data.Dataset)]
    return inputs + [value for value in held if not any(value is known for known in inputs)]


def stages(*datasets: tf.data.Dataset) -> Iterator[Any]:
    """Yield all stages of the datasets once, sources first."""
    seen: set[int] = set()
    waiting = [(dataset, False) for dataset in reversed(datasets)]
    while waiting:
        stage, has_sources = waiting.pop()
        if has_sources:
            yield stage
        elif id(stage) not in seen:
            seen.add(id(stage))
            waiting += [(stage, True), *((source, False) for source in reversed(sources(stage)))]


def operations(stage: Any) -> Iterator[Any]:
    """Yield the operations of the functions that a stage calls, including nested functions."""
    for function in stage_functions(stage):
        yield from all_operations(function.graph)


def describe_pipeline(dataset: tf.data.Dataset) -> dict[str, Any]:
    """Describe a dataset in JSON values that are the same in every process for the same code and data.

    "stages" has one line for each stage, source first, with its numbers and array shapes, such as
    ``Shuffle(2000, 1337)``; "file names" and "file sizes" are digests.
    """
    lines: list[str] = []
    names: list[str] = []
    sizes: list[int] = []
    for stage in stages(dataset):
        tensors = _tensors(stage)
        settings = [text for tensor in tensors if (text := _setting(tensor)) is not None]
        told, files = getattr(stage, ABOUT, ([], []))
        lines += [*told, f"{stage_label(stage)}({', '.join(settings)})"]
        for found in (files, *map(_texts, tensors)):
            if all(map(os.path.isfile, found[:_LOOKED_AT])):
                names += map(os.fsdecode, found if found is not files else ())  # no stage opens a reader's files
                sizes += map(os.path.getsize, found[:_LOOKED_AT])
    return {"stages": lines, "file names": _digest(names), "file sizes": _digest(sizes)}


def describe_sources(dataset: tf.data.Dataset) -> list[Any]:
    """Describe the sources of a dataset by their contents, without seeds."""
    return [
        (stage_label(stage), getattr(stage, ABOUT, None), [_setting(value, hashed=True) for value in _tensors(stage)])
        for stage in stages(dataset)
        if not sources(stage) and stage_name(stage) not in ("_Random", "_Variant")
    ]


def first_difference(then: list[str], now: list[str]) -> str | None:
    """Return a message about the first stage in which two pipelines differ, or None."""
    for before, after in zip_longest(then, now):
        if before != after:
            change = "is gone" if after is None else "is new" if before is None else f"has become {after}"
            return f"the pipeline's stage {before or after} {change}"
    return None


def _tensors(stage: Any) -> list[Any]:
    """Return the tensors that a stage was given, in the order of its attribute names."""
    found: list[Any] = []
    for _, value in sorted(stage_settings(stage).items()):
        items = value if isinstance(value, list | tuple) else [value]
        found += [item for item in items if isinstance(item, tf.Tensor) and hasattr(item, "numpy")]
    return found


def _setting(tensor: Any, *, hashed: bool = False) -> str | None:
    """Return a number as text, or an array's dtype and shape; with `hashed`, also a digest of strings and arrays."""
    if tensor.dtype in (tf.variant, tf.resource) or (tensor.dtype == tf.string and not hashed):
        return None
    if tensor.shape.rank == 0 and tensor.dtype != tf.string:
        return str(tensor.numpy())
    shape = f"{tensor.dtype.name}[{','.join(map(str, tensor.shape))}]"
    value = np.asarray(tensor.numpy())
    if not hashed or value.nbytes > _HASHED_BYTES:
        return shape
    return f"{shape} {_digest(value.tolist()) if value.dtype == object else short_digest(value.tobytes())}"


def _texts(tensor: Any) -> list[bytes]:
    """Return the strings of a string tensor with a static value; empty for any other tensor."""
    value = tf.get_static_value(tensor) if isinstance(tensor, tf.Tensor) and tensor.dtype == tf.string else None
    return [] if value is None else np.ravel(value).tolist()


def _digest(found: object) -> str:
    return short_digest(repr(found).encode(errors="surrogateescape"))


PLAIN = frozenset(
    (
        *("_Range", "_Tensor", "_TensorSlice", "TextLine", "TFRecord", "FixedLengthRecord"),
        *("_Map", "_ParallelMap", "_Filter", "_ParseExample", "_Unbatch", "_Zip", "_Restructured"),
        *("_Batch", "_ParallelBatch", "_PaddedBatch", "_MapAndBatch"),
        *("_Prefetch", "_Repeat", "_Take", "_Skip", "_Shard", "_AutoShard", "_Options", "_AssertCardinality"),
        *("_FlatMap", "_Interleave", "_ParallelInterleave", "_Concatenate", "Cache", "_Shuffle"),
        "_Variant",  # the numbers of enumerate()
    )
)
"""Class names of the stages whose state TensorFlow saves completely."""
_DROPS_SOURCES = ("_FlatMap", "_Interleave", "_ParallelInterleave", "_Concatenate", "Cache")  # within a pass
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
        if is_live(stage) or stage_name(stage) == "_DataService":
            yield "it is live"
        if _is_unordered(stage):
            yield f"{stage_label(stage)} has deterministic=False"
        if stage_name(stage) in ("_Shuffle", "_Random") and not is_seeded(stage):
            yield "it is shuffled without a seed (call shuffle() in datasets(), or give it a seed)"


def _why_replay(dataset: tf.data.Dataset) -> Iterator[str]:
    for name in set_options(dataset.options()):
        if name not in _HARMLESS_OPTIONS:
            yield f"it has the option {name}"
    shuffles = 0
    for stage in stages(dataset):
        shuffles += stage_name(stage) == "_Shuffle"
        if stage_name(stage) not in PLAIN:
            yield f"stage {stage_label(stage)}"
        if is_file_cache(stage):
            yield "it is cached in a file"  # restoring the iterator without that file would kill the process
        is_parallel = stage_name(stage).startswith("_Parallel")
        if is_parallel and (op := next(filter(_has_order, operations(stage)), None)) is not None:
            yield f"parallel calls of {stage_label(stage)} run {op.type} in any order, so the data may not repeat"
        for op in operations(stage):
            if is_random(op):
                yield f"{stage_label(stage)} draws random numbers ({op.type}); tf.random.stateless_* keep the position"
            elif "PyFunc" in op.type or op.type == "GeneratorDataset":
                yield "Python code produces it"
            elif op.type not in _IN_FUNCTIONS and ("Dataset" in op.type or _has_state(op)):
                yield f"the function of {stage_label(stage)} runs {op.type}"
        if any(tensor.dtype == tf.variant for one in stage_functions(stage) for tensor in one.captured_inputs):
            yield f"the function of {stage_label(stage)} reads another dataset"
    if shuffles > 1:
        yield f"{shuffles} shuffles"
    yield from _above_shuffle(dataset)


def _above_shuffle(stage: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the reasons why the stages above a shuffle, the last one first, make its saved state incomplete."""
    name = stage_name(stage)
    if name == "_Shuffle":
        yield from (f"a shuffle below {other.strip('_')}" for other in above if other in _DROPS_SOURCES)
        if "_Repeat" in dropwhile(lambda other: other not in _ENDS_EARLY, above):
            yield "a shuffle that is repeated and cut off"  # threads decide how far it is read past the cut
    for source in sources(stage):
        yield from _above_shuffle(source, (*above, name))


def is_random(op: Any) -> bool:
    """Return whether an op draws random numbers from its own stateful generator."""
    return bool(op.op_def is not None and op.op_def.is_stateful and "seed2" in op.node_def.attr)


def _has_order(op: Any) -> bool:
    """Return whether the results of an op depend on its earlier calls: it is random, or changes a variable."""
    return is_random(op) or op.type.startswith(("Assign", "RngReadAndSkip"))


def is_python(dataset: tf.data.Dataset) -> bool:
    """Return whether Python code produces the data."""
    return any("PyFunc" in op.type for stage in stages(dataset) for op in operations(stage))


def reshuffles(dataset: tf.data.Dataset) -> bool:
    """Return whether each iteration over a dataset has a different order."""
    return any(map(_is_reshuffled, stages(dataset)))


def _is_reshuffled(stage: Any) -> bool:
    if stage_name(stage) in ("_Shuffle", "_Random"):
        return reshuffles_each_pass(stage)
    # The choices of `choose_from_datasets` have no Python object, and may be shuffled.
    return order_of(stage) is not None or stage_name(stage) == "_DirectedInterleave"


def draws(stage: Any) -> bool:
    """Return whether a stage or its functions have a random generator."""
    if _is_reshuffled(stage) or stage_name(stage) in ("_Shuffle", "_Random"):
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
    return stage_name(stage) == "Cache" and tf.get_static_value(cache_file(stage)) != b""


def _has_state(op: Any) -> bool:
    return op.type not in _WITHOUT_STATE and (op.op_def is None or op.op_def.is_stateful)


def _is_unordered(stage: Any) -> bool:
    """Return whether a stage has ``deterministic=False``."""
    if stage_name(stage) != "_ParallelInterleave":
        return is_declared_unordered(stage)
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(stage), external_state_policy=1, strip_device_assignment=True
    )
    nodes = tf.compat.v1.GraphDef.FromString(graph.numpy()).node
    return any(one.op.startswith("ParallelInterleave") and one.attr["deterministic"].s == b"false" for one in nodes)
