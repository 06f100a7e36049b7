"""The parts of a tf.data pipeline: its stages, the functions that they call, and the files that it reads."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.readers.order import ABOUT
from prototrain.system.files import short_digest
from prototrain.system.urls import cache_home
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


def graphs(stage: Any) -> Iterator[Any]:
    """The graphs of the functions that a stage calls, and of those inside of them."""
    waiting = [function.graph for function in stage_functions(stage)]
    while waiting:
        graph = waiting.pop()
        waiting += [function.graph for function in nested_functions(graph)]
        yield graph


def operations(stage: Any) -> Iterator[Any]:
    """The operations of the functions that a stage calls."""
    return (op for graph in graphs(stage) for op in graph.get_operations())


def describe_pipeline(dataset: tf.data.Dataset) -> dict[str, Any]:
    """Describe a dataset, as JSON can hold it.

    Returns:
        its "stages" from the source to the end, such as ``Shuffle(2000, 1337)``, with the numbers and
        the shapes of the arrays that they were given;
        the "directory" of its files, and digests of the "file names" below that and of the "file sizes". The same code
        over the same data gives the same in every process.
    """
    lines: list[str] = []
    names: list[list[str]] = []
    sizes: list[list[int]] = []
    for stage in stages(dataset):
        tensors = _tensors(stage)
        settings = [text for tensor in tensors if (text := _setting(tensor)) is not None]
        told, files = getattr(stage, ABOUT, ([], []))
        lines += [*told, f"{shown(stage)}({', '.join(settings)})"]
        for found in (files, *map(_texts, tensors)):
            if found and (found_sizes := _sizes(found)) is not None:
                names.append([os.fsdecode(name) for name in found])
                sizes.append(found_sizes)
    directory = _common_directory({os.path.dirname(path) for group in names for path in group})
    below = [[os.path.relpath(path, directory) if directory else path for path in group] for group in names]
    return {"stages": lines, "directory": directory, "file names": _digest(below), "file sizes": _digest(sizes)}


def describe_sources(dataset: tf.data.Dataset) -> list[str]:
    """Describe where the data of a dataset comes from: the contents of its sources, but no seeds."""
    return [
        f"{shown(stage)} {_digest(getattr(stage, ABOUT, None))} {[_content(value) for value in _tensors(stage)]}"
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


def named_files(datasets: Iterable[tf.data.Dataset]) -> set[str]:
    """The absolute paths of the files whose names stand in the datasets' graphs."""
    found: set[str] = set()
    for stage in stages(*datasets):
        found.update(map(os.path.abspath, getattr(stage, ABOUT, ([], []))[1]))
        tensors = _tensors(stage)
        for function in stage_functions(stage):
            tensors += function.captured_inputs
        tensors += [op.outputs[0] for graph in graphs(stage) for op in graph.get_operations() if op.type == "Const"]
        texts = (text for tensor in tensors for text in _texts(tensor)[:_LOOKED_AT])
        found.update(os.path.abspath(os.fsdecode(text)) for text in texts if text and os.path.isfile(text))
    return found


def _tensors(stage: Any) -> list[Any]:
    """The tensors that a stage was given, in the order of its attributes' names."""
    found: list[Any] = []
    for _, value in sorted(stage_settings(stage).items()):
        items = value if isinstance(value, list | tuple) else [value]
        found += [item for item in items if isinstance(item, tf.Tensor) and hasattr(item, "numpy")]
    return found


def _setting(tensor: Any) -> str | None:
    """A number that a stage was given, or the dtype and shape of an array; None of anything else."""
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        return None
    return str(tensor.numpy()) if tensor.shape.rank == 0 else f"{tensor.dtype.name}[{','.join(map(str, tensor.shape))}]"


def _texts(tensor: Any) -> list[bytes]:
    """The texts of a tensor whose value is known; none of any other."""
    value = tf.get_static_value(tensor) if isinstance(tensor, tf.Tensor) and tensor.dtype == tf.string else None
    found: list[bytes] = [] if value is None else value.ravel().tolist() if hasattr(value, "ravel") else [value]
    return found


def _sizes(names: list[Any]) -> list[int] | None:
    """The sizes of the first files in a list of names, in bytes; None if one is no file."""
    sizes = []
    for name in names[:_LOOKED_AT]:
        try:
            status = os.stat(name)
        except (OSError, ValueError):  # a zero byte
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        sizes.append(status.st_size)
    return sizes


def _common_directory(directories: set[str]) -> str:
    """The longest path that all are below, "" if there is none; of downloads the cache, where other content has another
    name."""
    try:
        common = os.path.commonpath(directories)
    except ValueError:
        return ""
    cache = str(cache_home())
    return cache if os.path.join(common, "").startswith(os.path.join(cache, "")) else common


def _content(tensor: Any) -> str:
    if tensor.dtype in (tf.variant, tf.resource):
        return str(tensor.dtype.name)
    value: np.ndarray[Any, Any] = np.asarray(tensor.numpy())
    shape = f"{value.dtype}{list(value.shape)}"
    if value.nbytes > _HASHED_BYTES:
        return shape
    return f"{shape} {short_digest(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())}"


def _digest(found: object) -> str:
    return short_digest(repr(found).encode(errors="surrogateescape"))
