"""The files of one checkpoint: how they are written, and how they are checked before anything is taken from them.

Nothing in them can be code: meta.json is plain JSON, and the bundles hold tensors. The one place where TensorFlow would
take code from a checkpoint, graphs of datasets inside the saved position of an iterator, is refused.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

import numpy as np
import tensorflow as tf
import xxhash

from prototrain.checkpoint.bundle import AT_ONCE, BUNDLE, read_bundle, read_tensors, write_bundle
from prototrain.errors import CheckpointError
from prototrain.experiment import STEP
from prototrain.experiment.names import META as META
from prototrain.system.files import sync

FORMAT = 1
DIGEST = "xxh3"  # of a file, 128 bits: against damage, not against forgery
_PART = 2**22  # bytes that are read at once
_TYPES = {"step": int, "variables": dict, "parts": dict, "files": dict}
_OF_SOME_BUNDLE = re.compile(r".*\.(index|data-\d+-of-\d+)")
HOLDS_DATASETS = "it is an iterator that holds datasets, and their graphs would have to be run to restore it"
_WORD = b".is_dataset"
_HOLDS_GRAPH = re.compile(rb"@@[^@\s]{1,200}" + re.escape(_WORD))


class UnknownFormatError(CheckpointError):
    """A checkpoint is whole, but of a version that this one cannot read. It must stay where it is."""


@runtime_checkable
class Saveable(Protocol):
    """Something that writes and reads files of its own in a checkpoint, such as the position in the data.

    meta.json has what `write` returns under "parts".
    """

    def write(self, prefix: str) -> Any:
        """Write files that start with `prefix`; return what `read` needs besides, as JSON can hold it.

        What is returned may also be a function, called in any thread, that writes the files and returns that: then
        `write` itself only takes hold of what training changes.
        """

    def read(self, prefix: str, meta: Any) -> None:
        """Take the state back, all of it or, when that fails, nothing."""


@dataclass
class Snapshot:
    """What goes into a checkpoint.

    Attributes:
        step: completed steps.
        variables: tensors or variables by name.
        saveables: objects that write files of their own, by name.
        meta: everything else, as JSON can hold it.
        check: called with the variables' values by name, ahead of writing and in its thread; raises where they must not
            be saved.
        gives_way: whether the writing of much leaves the processors to others.
    """

    step: int
    variables: dict[str, Any] = field(default_factory=dict)
    saveables: dict[str, Saveable] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    check: Callable[[Mapping[str, tf.Tensor]], object] | None = None
    gives_way: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    Attributes:
        path: its directory.
        meta: the content of its meta.json.
    """

    path: Path
    meta: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.meta["step"])

    def variables(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read every variable.

        Raises:
            CheckpointError: the bundle cannot be read.
        """
        return read_bundle(self.path / BUNDLE)

    def tensors(self) -> dict[str, tf.Tensor]:
        """Read every variable, without the copies that arrays are; as `variables`."""
        return read_tensors(self.path / BUNDLE)

    def prefix_of(self, name: str) -> str:
        """What the names of a saveable's files start with, its directory included."""
        return prefix_of(self.path, name)


def prefix_of(directory: Path, name: str) -> str:
    """What the names of a saveable's files start with: its name, as far as a file can have it and nothing else does."""
    quoted = quote(name, safe=" ")
    if quoted.partition(".")[0] in ("", BUNDLE, "meta"):
        quoted = f"%{quoted}"
    return str(directory / quoted)


def start_snapshot(directory: Path, snapshot: Snapshot) -> Callable[[], None]:
    """Write what moves on while training does, into an existing directory, and hold on to the variables' values.

    Returns:
        a function, for any thread, that writes the rest and syncs all files.

    Raises:
        CheckpointError: something cannot be saved; also from the function.
        OSError, tf.errors.OpError: a file cannot be written; also from the function.
        NonFiniteError: from the function, as the snapshot's check says.
    """
    # A tensor that was read from a variable keeps its value: the variable's next update makes a copy.
    tensors = {
        name: tf.constant(value) if isinstance(value, np.ndarray) else tf.convert_to_tensor(value)
        for name, value in snapshot.variables.items()
    }
    written = {name: one.write(prefix_of(directory, name)) for name, one in snapshot.saveables.items()}

    def finish() -> None:
        if snapshot.check is not None:
            snapshot.check(tensors)
        parts = {name: rest() if callable(rest) else rest for name, rest in written.items()}
        if tensors:
            write_bundle(directory / BUNDLE, tensors, gives_way=snapshot.gives_way)
        files = sorted(directory.iterdir())
        for path in files:
            if file_holds_graph(path):
                raise CheckpointError(f"the state in {path.name} cannot be saved: {HOLDS_DATASETS}")
        with ThreadPoolExecutor(AT_ONCE) as pool:  # the disk is busy with a file while it is read for its digest
            found = [(pool.submit(_digest, path), pool.submit(sync, path)) for path in files]
        digests = {}
        for path, (digest, synced) in zip(files, found, strict=True):
            synced.result()
            digests[path.name] = {"size": path.stat().st_size, DIGEST: digest.result()}
        meta = {
            "format": FORMAT,
            "step": snapshot.step,
            "variables": {
                name: {"shape": tensor.shape.as_list(), "dtype": tensor.dtype.name} for name, tensor in tensors.items()
            },
            "parts": parts,
            **snapshot.meta,
            "files": digests,
        }
        text = json.dumps({"sha256": checksum(meta), "meta": meta})
        (directory / META).write_text(text + "\n", encoding="utf-8")
        sync(directory / META)
        sync(directory)

    return finish


def verify(path: Path, *, run_id: str | None = None) -> Checkpoint:
    """Check every file of a checkpoint against its meta.json.

    Args:
        path: its directory.
        run_id: the run that it must be of; None accepts any.

    Raises:
        UnknownFormatError: it is whole, and of another version's format.
        CheckpointError: a file is missing, has another size or another content, or it is not of this run.
    """
    try:
        meta = _read_meta(path)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for checked in [pool.submit(_check_file, path, *file) for file in meta["files"].items()]:
                checked.result()
        for file in path.iterdir():
            if file.name not in meta["files"] and _OF_SOME_BUNDLE.fullmatch(file.name):
                raise CheckpointError(f"checkpoint {path} is damaged: {file.name} does not belong to it")
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error.strerror}: {error.filename}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {META} is not readable") from error
    named = STEP.fullmatch(path.name)
    if named and int(named[1]) != meta["step"]:
        raise CheckpointError(f"checkpoint {path} is damaged: its content is of step {meta['step']}")
    if None not in (run_id, meta.get("run_id")) and run_id != meta["run_id"]:
        raise CheckpointError(
            f"checkpoint {path} is of another run ({meta['run_id']}); "
            "to start from its weights, name it in model.weights_load_path"
        )
    return Checkpoint(path, meta)


def _read_meta(path: Path) -> dict[str, Any]:
    """Read meta.json, and check that it is whole and has the form that a restore relies on."""
    file = path / META
    if file.exists() and not file.is_file():
        raise ValueError("not a file")  # to open a pipe would wait for ever
    document = json.loads(file.read_text(encoding="utf-8"))
    meta: dict[str, Any] = document["meta"]
    if checksum(meta) != document["sha256"]:
        raise CheckpointError(f"checkpoint {path} is damaged: the content of {META} does not match its checksum")
    if meta["format"] != FORMAT:
        raise UnknownFormatError(
            f"checkpoint {path} has format {meta['format']!r}, and this version of prototrain reads {FORMAT}; "
            "use the version that wrote it"
        )
    if any(type(meta[key]) is not kind for key, kind in _TYPES.items()) or not 0 <= meta["step"] < sys.maxsize:
        raise ValueError("no run writes that")
    return meta


def _check_file(path: Path, name: str, expected: dict[str, Any]) -> None:
    if Path(name).name != name or name in (".", ".."):
        raise CheckpointError(f"checkpoint {path} is damaged: {META} names a file outside of it, {name!r}")
    file = path / name
    size = file.stat().st_size
    if not file.is_file():
        raise CheckpointError(f"checkpoint {path} is damaged: {name} is not a file")
    if size != expected["size"]:
        raise CheckpointError(f"checkpoint {path} is damaged: {name} has {size} bytes, not {expected['size']}")
    # Checkpoints that were written before have SHA-256, which takes longer than writing them.
    as_expected = _digest(file) == expected[DIGEST] if DIGEST in expected else _sha256(file) == expected["sha256"]
    if not as_expected:
        raise CheckpointError(f"checkpoint {path} is damaged: the content of {name} does not match its checksum")
    if file_holds_graph(file):
        raise CheckpointError(
            f"checkpoint {path}: {name} holds a TensorFlow graph, which a restore would run; no run ever writes that"
        )


def holds_graph(content: bytes | mmap.mmap) -> bool:
    """Whether a file of a saved iterator holds a dataset as a graph, which TensorFlow would run to restore it.

    The keys of an iterator's state stand in the file as they are, each behind two @; only the values are compressed.
    """
    # Most files do not have the word at all, and to look for it alone is faster.
    return content.find(_WORD) >= 0 and _HOLDS_GRAPH.search(content) is not None


def file_holds_graph(path: Path) -> bool:
    """Whether a file in a checkpoint holds a dataset as a graph; one with variables never does."""
    if path.name.startswith(f"{BUNDLE}.") or not path.stat().st_size:
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return holds_graph(content)


def checksum(meta: Any) -> str:
    """The checksum of what meta.json holds, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _digest(path: Path) -> str:
    found = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while part := file.read(_PART):
            found.update(part)
    return found.hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
