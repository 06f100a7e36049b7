"""What a tf.data pipeline is made of: its stages by name, and the files that it reads."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.data.stages import graphs, name_of, shown, sources, stages
from prototrain.readers.order import DESCRIPTION, FILES
from prototrain.system.files import short_digest
from prototrain.system.urls import cache_home
from prototrain.tf_private import saved_in, stage_functions, stage_settings

_LOOKED_AT = 20_000  # names of a list whose files are looked at: on a network it takes long
_MOST_TEXTS = 100_000  # of a list that may be names of files
_LONGEST_PATH = 4096
_HASHED_BYTES = 64 * 2**20  # contents of more than this are known by shape only: hashing them would delay every start


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
    for stage in _from_source(dataset):
        tensors = _tensors(stage)
        settings = [text for tensor in tensors if (text := _setting(tensor)) is not None]
        told, files = _told(stage)
        lines += [*told, f"{shown(stage)}({', '.join(settings)})"]
        lists: list[list[Any]] = [files, *map(_texts, tensors)]
        for found in lists:
            if found and (found_sizes := _sizes(found)) is not None:
                names.append([os.fsdecode(name) for name in found])
                sizes.append(found_sizes)
    directory = _common_directory({os.path.dirname(path) for group in names for path in group})
    below = [[os.path.relpath(path, directory) if directory else path for path in group] for group in names]
    return {"stages": lines, "directory": directory, "file names": _digest(below), "file sizes": _digest(sizes)}


def describe_sources(dataset: tf.data.Dataset) -> list[str]:
    """Describe where the data of a dataset comes from: the contents of its sources, but no seeds."""
    lines = []
    for stage in _from_source(dataset):
        if not sources(stage) and name_of(stage) not in ("_Random", "_Variant"):
            told = getattr(stage, DESCRIPTION, _told(stage)[1])
            lines.append(f"{shown(stage)} {told} {[_content(value) for value in _tensors(stage)]}")
    return lines


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
        found.update(map(os.path.abspath, _told(stage)[1]))
        tensors = _tensors(stage)
        for function in stage_functions(stage):
            tensors += function.captured_inputs
        tensors += [op.outputs[0] for graph in graphs(stage) for op in graph.get_operations() if op.type == "Const"]
        for tensor in tensors:
            found.update(_existing(tensor))
    return found


def _from_source(dataset: tf.data.Dataset) -> Iterator[Any]:
    seen: set[int] = set()

    def visit(stage: Any) -> Iterator[Any]:
        if id(stage) not in seen:
            seen.add(id(stage))
            for source in sources(stage):
                yield from visit(source)
            yield stage

    return visit(dataset)


def _told(stage: Any) -> tuple[list[str], list[str]]:
    """What a reader tells of a stage, and the files that a stage was not given as a tensor."""
    if (directory := saved_in(stage)) is not None:
        return [], sorted(str(file) for file in Path(directory).rglob("*") if file.is_file())
    files, lines = getattr(stage, FILES, ([], getattr(stage, DESCRIPTION, [])))
    return lines, files


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


def _existing(tensor: Any) -> Iterator[str]:
    for text in _texts(tensor)[:_MOST_TEXTS]:
        if 0 < len(text) <= _LONGEST_PATH and b"\0" not in text and os.path.isfile(text):
            yield os.path.abspath(os.fsdecode(text))


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
