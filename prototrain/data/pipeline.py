"""The parts of a tf.data pipeline: its stages, the functions that they call, and the files that it reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.readers.order import ABOUT
from prototrain.system.files import short_digest
from prototrain.tf_private import nested_functions, stage_functions, stage_inputs, stage_settings, stood_for
from prototrain.tf_private import stage_name as name_of

_LOOKED_AT = 20_000  # names of a list whose files are looked at: on a network it takes long
_HASHED_BYTES = 64 * 2**20  # contents of more than this are known by shape only: hashing them would delay every start


def shown(stage: Any) -> str:
    """A stage's name for people, such as ``ParallelMap``."""
    return name_of(stage).strip("_")


def sources(stage: Any) -> list[Any]:
    """The stages that a stage reads from."""
    if stood_for(stage) is not None:
        return [stood_for(stage)]
    inputs = stage_inputs(stage)
    held = [value for value in vars(stage).values() if isinstance(value, tf.data.Dataset)]
    return inputs + [value for value in held if not any(value is known for known in inputs)]


def stages(*datasets: tf.data.Dataset) -> Iterator[Any]:
    """The datasets and all that they are made of, each once, the sources of a stage before it."""
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
    """The operations of the functions that a stage calls, and of the functions inside of them."""
    waiting = stage_functions(stage)
    while waiting:
        graph = waiting.pop().graph
        waiting += nested_functions(graph)
        yield from graph.get_operations()


def describe_pipeline(dataset: tf.data.Dataset) -> dict[str, Any]:
    """Describe a dataset, as JSON can hold it; the same code over the same data gives the same in every process.

    Returns:
        its "stages" from the source to the end, such as ``Shuffle(2000, 1337)``, with the numbers and the shapes of the
        arrays that they were given, and digests of the "file names" in these and of the "file sizes".
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
                names += map(os.fsdecode, found if found is not files else ())  # no stage reads those by their names
                sizes += map(os.path.getsize, found[:_LOOKED_AT])
    return {"stages": lines, "file names": _digest(names), "file sizes": _digest(sizes)}


def describe_sources(dataset: tf.data.Dataset) -> list[Any]:
    """Describe where the data of a dataset comes from: the contents of its sources, but no seeds."""
    return [
        (shown(stage), getattr(stage, ABOUT, None), [_setting(value, hashed=True) for value in _tensors(stage)])
        for stage in stages(dataset)
        if not sources(stage) and name_of(stage) not in ("_Random", "_Variant")
    ]


def first_difference(then: list[str], now: list[str]) -> str | None:
    """Name the first stage in which two pipelines differ, or None."""
    for before, after in zip(then, now, strict=False):
        if before != after:
            return f"the pipeline's stage {before} has become {after}"
    longer = then[len(now) :] or now[len(then) :]
    if not longer:
        return None
    return f"the pipeline's stage {longer[0]} is {'gone' if len(then) > len(now) else 'new'}"


def _tensors(stage: Any) -> list[Any]:
    """The tensors that a stage was given, in the order of its attributes' names."""
    found: list[Any] = []
    for _, value in sorted(stage_settings(stage).items()):
        items = value if isinstance(value, list | tuple) else [value]
        found += [item for item in items if isinstance(item, tf.Tensor) and hasattr(item, "numpy")]
    return found


def _setting(tensor: Any, *, hashed: bool = False) -> str | None:
    """A number that a stage was given, or the dtype and shape of an array; also a digest of texts and arrays, if
    `hashed`."""
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
    """The texts of a tensor whose value is known; none of any other."""
    value = tf.get_static_value(tensor) if isinstance(tensor, tf.Tensor) and tensor.dtype == tf.string else None
    return [] if value is None else np.ravel(value).tolist()


def _digest(found: object) -> str:
    return short_digest(repr(found).encode(errors="surrogateescape"))
