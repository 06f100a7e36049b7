"""Inspection of tf.data pipelines: stages, the functions they call, and the files they read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.readers.order import ABOUT
from prototrain.system.files import short_digest
from prototrain.tf_private import all_operations, stage_functions, stage_inputs, stage_settings, wrapped_dataset
from prototrain.tf_private import stage_name as name_of

_LOOKED_AT = 20_000  # file names to check in a list: checking is slow on a network
_HASHED_BYTES = 64 * 2**20  # larger contents are described by shape only: hashing them would delay every start


def shown(stage: Any) -> str:
    """Return the display name of a stage, such as ``ParallelMap``."""
    return name_of(stage).strip("_")


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
        lines += [*told, f"{shown(stage)}({', '.join(settings)})"]
        for found in (files, *map(_texts, tensors)):
            if all(map(os.path.isfile, found[:_LOOKED_AT])):
                names += map(os.fsdecode, found if found is not files else ())  # no stage opens a reader's files
                sizes += map(os.path.getsize, found[:_LOOKED_AT])
    return {"stages": lines, "file names": _digest(names), "file sizes": _digest(sizes)}


def describe_sources(dataset: tf.data.Dataset) -> list[Any]:
    """Describe the sources of a dataset by their contents, without seeds."""
    return [
        (shown(stage), getattr(stage, ABOUT, None), [_setting(value, hashed=True) for value in _tensors(stage)])
        for stage in stages(dataset)
        if not sources(stage) and name_of(stage) not in ("_Random", "_Variant")
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
