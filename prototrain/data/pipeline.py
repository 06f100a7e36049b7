"""What a tf.data pipeline is made of, in words: to tell whether a saved position still means the same batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from prototrain.data.hidden import hidden_digest
from prototrain.data.stages import graphs, name_of, sources, stages
from prototrain.private_api.datasets import saved_in, stage_functions, stage_inputs, stage_settings
from prototrain.readers.order import DESCRIPTION, FILES
from prototrain.readers.paths import digest_of_names
from prototrain.system.file_names import FileNames, file_names, file_sizes
from prototrain.system.graphs import graph_digest, short_digest, value_digest, whole_digest
from prototrain.system.resources import table_digest

_LOOKED_AT = 100_000
_LONGEST_PATH = 4096
_HASHED_BYTES = 64 * 2**20  # contents of more than this are known by shape only: hashing them would delay every start


class Description(NamedTuple):
    """What a dataset is made of.

    Attributes:
        lines: as `describe_pipeline` gives them.
        whole: a digest of the same, and of what a reader of files is given.
        anywhere: the same without names of files, as far as they are known to be such. Those in the code of a function
            stay.
        files: these names.
        captured: a digest of the other constants that the functions of the stages use from outside.
        tables: a digest of the entries of the lookup tables that they use, or None.
    """

    lines: list[str]
    whole: str
    anywhere: list[str]
    files: FileNames
    captured: str
    tables: str | None


def describe_pipeline(dataset: tf.data.Dataset, digest: Callable[[Any], str] = value_digest) -> list[str]:
    """Describe each stage of a dataset, from its source to its end.

    Args:
        dataset: any dataset.
        digest: what to call the graph of a function.

    Returns:
        lines such as ``Shuffle(2000, 1337)``; a stage with a function ends in a digest of the function's graph. The
        same code over the same data gives the same lines in every process.
    """
    return _lines(dataset, stage_inputs, _show_tensor, _told_as_made if digest is graph_digest else _told, digest)


def description_of(dataset: tf.data.Dataset, *, as_made: bool = False) -> Description:
    """Describe each stage of a dataset, also without the names of its files, which are asked for their sizes.

    Args:
        dataset: any dataset.
        as_made: whether the ops of functions count in the order in which they were made, as earlier versions have it.
    """
    lists: list[list[Any]] = []
    sizes: list[list[int]] = []

    def is_of_files(names: list[Any]) -> bool:
        found = file_sizes(names)
        if found is None:
            return False
        lists.append(names)
        sizes.append(found)
        return True

    def show(tensor: Any) -> str:
        texts = _texts(tensor)
        return f"files[{len(texts)}]" if is_of_files(texts) else _show_tensor(tensor)

    def told(stage: Any) -> list[str]:
        names, without = _files_of(stage)
        return without if is_of_files(names) else told_whole(stage)

    def told_whole(stage: Any) -> list[str]:
        names, without = _files_of(stage)
        return [digest_of_names(names), *without] if names else (_told_as_made if as_made else _told)(stage)

    digests: dict[int, str] = {}  # of functions' graphs, which take time

    def digest(graph: Any) -> str:
        if id(graph) not in digests:
            digests[id(graph)] = whole_digest(graph) if as_made else value_digest(graph)
        return digests[id(graph)]

    whole = short_digest(repr(_lines(dataset, sources, _show_tensor, told_whole, digest)).encode())
    anywhere = _lines(dataset, sources, show, told, digest)
    functions = [function for stage in stages(dataset) for function in stage_functions(stage)]
    if as_made:
        captured = [show(tensor) for function in functions for tensor in function.captured_inputs]
    else:
        captured = [_with_captured(function.graph, show) for function in functions if function.graph.captures]
    return Description(
        lines=describe_pipeline(dataset, graph_digest if as_made else digest),
        whole=whole,
        anywhere=anywhere,
        files=file_names(lists, sizes),
        captured=short_digest(repr(captured).encode()),
        tables=table_digest((function.graph for function in functions), as_found=as_made),
    )


def _with_captured(graph: Any, show: Callable[[Any], str]) -> str:
    """A digest of a function's graph, with the values that it uses from outside where it uses them."""
    return value_digest(graph, {inside.op.name: show(outside) for outside, inside in graph.captures})


def _files_of(stage: Any) -> tuple[list[str], list[str]]:
    """The names of the files that a stage was not given as a tensor, and what is told of it without them."""
    directory = saved_in(stage)
    if directory is None:
        named: tuple[list[str], list[str]] = getattr(stage, FILES, ([], []))
        return named
    files = sorted(str(file) for file in Path(directory).rglob("*") if file.is_file())
    return files, [f"files[{len(files)}]"]


def _told_as_made(stage: Any) -> list[str]:
    """What a reader tells of what it has made."""
    lines: list[str] = getattr(stage, DESCRIPTION, [])
    return lines


def _told(stage: Any) -> list[str]:
    """The same, and what TensorFlow keeps no tensors of: what is hidden, what is loaded, how examples are parsed."""
    hidden, directory = hidden_digest(stage), saved_in(stage)
    features = f"{stage_settings(stage)['_features']!r}" if name_of(stage) == "_ParseExample" else None
    return _told_as_made(stage) + [str(one) for one in (hidden, directory, features) if one is not None]


def _lines(
    dataset: tf.data.Dataset,
    below: Callable[[Any], list[Any]],
    show: Callable[[Any], str],
    told: Callable[[Any], list[str]],
    digest: Callable[[Any], str],
) -> list[str]:
    """A line for each stage, ahead of it what is told of it besides."""
    lines: list[str] = []
    seen: set[int] = set()

    def visit(stage: Any) -> None:
        if id(stage) in seen:
            return
        seen.add(id(stage))
        for source in below(stage):
            visit(source)
        values = [value for _, value in sorted(stage_settings(stage).items())]
        settings = [shown for value in values if (shown := _show(value, show)) is not None]
        functions = [f"function {digest(function.graph)}" for function in stage_functions(stage)]
        name = type(stage).__name__.strip("_").removesuffix("Dataset")
        lines.extend(told(stage))
        lines.append(f"{name}({', '.join(settings + functions)})")

    visit(dataset)
    return lines


def describe_sources(dataset: tf.data.Dataset) -> list[str]:
    """Describe only where a dataset's data comes from, as in `describe_pipeline`: what no seed has to do with. So what
    is hidden and what functions do is left out, since there may be seeds in it."""
    found = (stage for stage in stages(dataset) if not sources(stage) and name_of(stage) != "_Random")
    return [line for one in found for line in _lines(one, stage_inputs, _show_tensor, _told_as_made, lambda graph: "")]


def named_files(datasets: Iterable[tf.data.Dataset]) -> set[str]:
    """The absolute paths of the files whose names stand in the datasets' graphs."""
    found: set[str] = set()
    for part in stages(*datasets):
        values = [item for value in vars(part).values() for item in (value if isinstance(value, list) else [value])]
        tensors = [value for value in values if tf.is_tensor(value)]
        found.update(map(os.path.abspath, _files_of(part)[0]))
        for function in stage_functions(part):
            tensors += function.captured_inputs
        tensors += [tensor for graph in graphs(part) for tensor in _constants(graph)]
        for tensor in tensors:
            found.update(_existing(tensor))
    return found


def _constants(graph: Any) -> Iterator[Any]:
    return (op.outputs[0] for op in graph.get_operations() if op.type == "Const")


def _existing(tensor: Any) -> Iterator[str]:
    for text in _texts(tensor)[:_LOOKED_AT]:
        if 0 < len(text) <= _LONGEST_PATH and b"\0" not in text and os.path.isfile(text):
            yield os.path.abspath(os.fsdecode(text))


def _texts(tensor: Any) -> list[bytes]:
    """The texts of a tensor whose value is known; none of any other."""
    value = tf.get_static_value(tensor) if isinstance(tensor, tf.Tensor) and tensor.dtype == tf.string else None
    found: list[bytes] = [] if value is None else value.ravel().tolist() if hasattr(value, "ravel") else [value]
    return found


def first_difference(then: list[str], now: list[str]) -> str | None:
    """Name the first stage in which two pipelines differ, or None."""
    for before, after in zip(then, now, strict=False):
        if before != after:
            return f"the pipeline's stage {before} has become {after}"
    longer = then[len(now) :] or now[len(then) :]
    if not longer:
        return None
    return f"the pipeline's stage {longer[0]} is {'gone' if len(then) > len(now) else 'new'}"


def _show(value: Any, show: Callable[[Any], str]) -> str | None:
    """A stage's setting, from the attributes of its object: tensors are what the stage was given."""
    if isinstance(value, (list, tuple)):
        tensors = [item for item in value if tf.is_tensor(item)]
        return ", ".join(map(show, tensors)) if tensors and len(tensors) == len(value) else None
    return show(value) if tf.is_tensor(value) else None


def _show_tensor(tensor: Any) -> str:
    if not isinstance(tensor, tf.Tensor) or not hasattr(tensor, "numpy") or tensor.dtype in (tf.variant, tf.resource):
        return type(tensor).__name__ if not isinstance(tensor, tf.Tensor) else tensor.dtype.name
    value = tensor.numpy()
    if tensor.shape.rank == 0:
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return f"{tensor.dtype.name}[{','.join(map(str, tensor.shape))}] {short_digest(_content(value))}"


def _content(value: np.ndarray[Any, Any]) -> bytes:
    if value.nbytes > _HASHED_BYTES:
        return str(value.shape).encode()
    return repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
