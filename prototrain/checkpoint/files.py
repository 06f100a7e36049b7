"""The files of one checkpoint: written, checksummed and verified.

A checkpoint is a directory with a TensorFlow bundle ``model.*``, which holds every variable by name, files of other
objects (`Saveable`), and ``meta.json``, which has the size and digest of every other file. Nothing in it is code. The
one thing that TensorFlow would run to restore it, a dataset's graph inside an iterator's state, is refused.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
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

from prototrain.errors import CheckpointError
from prototrain.experiment.names import META as META
from prototrain.experiment.names import STEP
from prototrain.system.files import literal_prefix, sync
from prototrain.system.tracebacks import first_line

FORMAT = 1
BUNDLE = "model"
"""The prefix of the bundle with the variables."""
READ_ERRORS = (OSError, ValueError, IndexError, KeyError, TypeError, RuntimeError, AssertionError, tf.errors.OpError)
_HOLDS_GRAPH = "it is an iterator that holds datasets, and a restore would have to run their graphs"
_DIGEST = "sha256"  # protects against damage, not against forgery
_THREADS = min(4, os.cpu_count() or 1)
_FILE_BYTES = 2**28  # about the size of one file of a bundle
_META_TYPES = {"step": int, "variables": dict, "parts": dict, "files": dict}
_BUNDLE_FILE = re.compile(r".*\.(index|data-\d+-of-\d+)")
_GRAPH_WORD = b".is_dataset"
_GRAPH_KEY = re.compile(rb"@@[^@\s]{1,200}" + re.escape(_GRAPH_WORD))


class UnknownFormatError(CheckpointError):
    """A whole checkpoint in a format that this version cannot read. It stays where it is."""


@runtime_checkable
class Saveable(Protocol):
    """An object with its own files in a checkpoint, such as the position in the data."""

    def write(self, prefix: str) -> Any:
        """Write files whose names start with `prefix`.

        Returns:
            what else `read` needs, as JSON can hold it; or a function that writes the files later, in any thread,
            and returns that. In this case `write` only copies what training changes.
        """

    def read(self, prefix: str, meta: Any) -> None:
        """Restore the state: all of it or, if that fails, nothing."""


@dataclass
class Snapshot:
    """The content of a checkpoint.

    Attributes:
        step: completed steps.
        variables: tensors, variables or arrays by name.
        saveables: objects with their own files, by name.
        meta: everything else, as JSON can hold it.
        check: called with the values by name in the writing thread, before they are written; raises an error if they
            must not be saved.
    """

    step: int
    variables: dict[str, Any] = field(default_factory=dict)
    saveables: dict[str, Saveable] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    check: Callable[[Mapping[str, tf.Tensor]], object] | None = None


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
        """Read all variables as arrays.

        Raises:
            CheckpointError: the bundle cannot be read.
        """
        return read_bundle(self.path / BUNDLE)

    def tensors(self) -> dict[str, tf.Tensor]:
        """Read all variables as tensors, which needs no copies; see `variables`."""
        return read_tensors(self.path / BUNDLE)

    def prefix_of(self, name: str) -> str:
        """The path that the files of a `Saveable` start with."""
        return prefix_of(self.path, name)


def prefix_of(directory: Path, name: str) -> str:
    """The path that the files of a `Saveable` start with: its name, quoted where a file cannot have it."""
    quoted = quote(name, safe=" ")
    if quoted.partition(".")[0] in ("", BUNDLE, "meta"):
        quoted = f"%{quoted}"
    return str(directory / quoted)


# -- writing ----------------------------------------------------------------------------------------------------------


def start_snapshot(directory: Path, snapshot: Snapshot) -> Callable[[], None]:
    """Copy what training changes into memory or into an existing directory.

    Returns:
        a function, for any thread, that writes the rest and syncs all files.

    Raises:
        CheckpointError: something cannot be saved; also from the function.
        OSError, tf.errors.OpError: a file cannot be written; also from the function.
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
            _write_bundle(directory / BUNDLE, tensors)
        shapes = {name: {"shape": one.shape.as_list(), "dtype": one.dtype.name} for name, one in tensors.items()}
        meta = {
            "format": FORMAT,
            "step": snapshot.step,
            "variables": shapes,
            "parts": parts,
            **snapshot.meta,
            "files": _sync_and_digest(sorted(directory.iterdir())),
        }
        text = json.dumps({"sha256": checksum(meta), "meta": meta})
        (directory / META).write_text(text + "\n", encoding="utf-8")
        sync(directory / META)
        sync(directory)

    return finish


def _sync_and_digest(files: list[Path]) -> dict[str, dict[str, Any]]:
    for path in files:
        if holds_graph(path):
            raise CheckpointError(f"the state in {path.name} cannot be saved: {_HOLDS_GRAPH}")
    with ThreadPoolExecutor(_THREADS) as pool:  # a file is read for its digest while the disk writes it
        started = [(path, pool.submit(_digest, path), pool.submit(sync, path)) for path in files]
    for _, _, synced in started:
        synced.result()
    return {path.name: {"size": path.stat().st_size, _DIGEST: digest.result()} for path, digest, _ in started}


def _write_bundle(prefix: Path, tensors: Mapping[str, tf.Tensor]) -> None:
    """Write tensors into one file, or into several at once: TensorFlow writes a file with one thread."""
    parts: list[dict[str, tf.Tensor]] = []
    size = _FILE_BYTES
    for name, tensor in tensors.items():
        if size >= _FILE_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.shape.num_elements() * tensor.dtype.size
    prefixes = [f"{prefix}-{number}" for number in range(len(parts))]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(_write_tensors, prefixes, parts))
    with tf.device("CPU:0"):
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes, destination_prefix=str(prefix), delete_old_dirs=False
        )


def _write_tensors(prefix: str, tensors: Mapping[str, tf.Tensor]) -> None:
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )


# -- reading and verifying --------------------------------------------------------------------------------------------


def read_tensors(prefix: Path | str) -> dict[str, tf.Tensor]:
    """Read all tensors of a bundle by name.

    Raises:
        CheckpointError: there is no bundle, or it cannot be read.
    """
    try:
        with literal_prefix(prefix) as path, tf.device("CPU:0"):
            dtypes = tf.train.load_checkpoint(path).get_variable_to_dtype_map()
            # Variants and resources are not values, and decoding them may run code.
            names = [name for name, dtype in dtypes.items() if dtype not in (tf.variant, tf.resource)]
            tensors = tf.raw_ops.RestoreV2(
                prefix=path,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                dtypes=[dtypes[name] for name in names],
            )
    except READ_ERRORS as error:
        raise CheckpointError(f"cannot read the checkpoint {prefix}: {first_line(error)}") from error
    return dict(zip(names, tensors, strict=True))


def read_bundle(prefix: Path | str) -> dict[str, np.ndarray[Any, Any]]:
    """Read all tensors of a bundle by name, as arrays; see `read_tensors`."""
    return {name: tensor.numpy() for name, tensor in read_tensors(prefix).items()}


def verify(path: Path, *, run_id: str | None = None) -> Checkpoint:
    """Check every file of a checkpoint against its meta.json.

    Args:
        path: its directory.
        run_id: the run that it must belong to; None accepts any.

    Raises:
        UnknownFormatError: it is whole, but in a format of another version.
        CheckpointError: a file is missing or damaged, or the checkpoint belongs to another run.
    """
    try:
        meta = _read_meta(path)
        with ThreadPoolExecutor(_THREADS) as pool:
            for checked in [pool.submit(_check_file, path, *file) for file in meta["files"].items()]:
                checked.result()
        for file in path.iterdir():
            if file.name not in meta["files"] and _BUNDLE_FILE.fullmatch(file.name):
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
    file = path / META
    if file.exists() and not file.is_file():
        raise ValueError("not a file")  # opening a pipe would wait forever
    document = json.loads(file.read_text(encoding="utf-8"))
    meta: dict[str, Any] = document["meta"]
    if checksum(meta) != document["sha256"]:
        raise CheckpointError(f"checkpoint {path} is damaged: the content of {META} does not match its checksum")
    if meta["format"] != FORMAT:
        raise UnknownFormatError(
            f"checkpoint {path} has format {meta['format']!r}, and this version of prototrain reads {FORMAT}; "
            "use the version that wrote it"
        )
    if any(type(meta[key]) is not kind for key, kind in _META_TYPES.items()) or not 0 <= meta["step"] < sys.maxsize:
        raise ValueError("not written by a run")
    return meta


def _check_file(path: Path, name: str, expected: dict[str, Any]) -> None:
    damaged = f"checkpoint {path} is damaged:"
    if Path(name).name != name or name in (".", ".."):
        raise CheckpointError(f"{damaged} {META} names a file outside of it, {name!r}")
    file = path / name
    size = file.stat().st_size
    if not file.is_file():
        raise CheckpointError(f"{damaged} {name} is not a file")
    if size != expected["size"]:
        raise CheckpointError(f"{damaged} {name} has {size} bytes, not {expected['size']}")
    if _digest(file) != expected[_DIGEST]:
        raise CheckpointError(f"{damaged} the content of {name} does not match its checksum")
    if holds_graph(file):
        raise CheckpointError(f"checkpoint {path}: {name} holds a TensorFlow graph, which a restore would run")


def holds_graph(path: Path) -> bool:
    """Whether a file of a saved iterator holds a dataset's graph; the bundle of variables never does.

    The keys of an iterator's state are plain text in the file, each after two @; only the values are compressed.
    """
    if path.name.startswith(f"{BUNDLE}.") or not path.stat().st_size:
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        # Most files do not contain the word at all, and searching for it is faster.
        return content.find(_GRAPH_WORD) >= 0 and _GRAPH_KEY.search(content) is not None


def checksum(meta: Any) -> str:
    """The checksum of the content of meta.json, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _digest(path: Path) -> str:
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, _DIGEST).hexdigest()
