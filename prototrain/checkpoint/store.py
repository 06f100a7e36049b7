"""The checkpoints of a run: directories that are written atomically and verified when they are read.

``step-<10 digits>/`` is written under a temporary name, synced and renamed; it is replaced only as a whole. There is no
index file: the newest checkpoint is the one with the highest step that passes verification.

A checkpoint contains a TensorFlow bundle ``model.*`` with all variables by name, files of other objects (`Saveable`),
and ``meta.json`` with the size and digest of every other file. It contains no code. A dataset's graph inside an
iterator's state is the only thing that TensorFlow would run in a restore, so such a state is rejected.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

import numpy as np
import tensorflow as tf

from prototrain.errors import CheckpointError, ExperimentError
from prototrain.experiment.experiment import META as META
from prototrain.experiment.experiment import STEP, checkpoint_steps
from prototrain.system.files import require_literal, sync
from prototrain.system.terminal import FRESH
from prototrain.system.tracebacks import cause

FORMAT = 2
BUNDLE = "model"
"""The prefix of the bundle with the variables."""
READ_ERRORS = (OSError, ValueError, IndexError, KeyError, TypeError, RuntimeError, AssertionError, tf.errors.OpError)
_REPLACED = ".replaced-"  # begins the name of a checkpoint while another one takes its place
_THREADS = min(4, os.cpu_count() or 1)
_META_TYPES = {"step": int, "variables": dict, "parts": dict, "files": dict}
_GRAPH_KEY = re.compile(rb"@@[^@\s]{1,200}\.is_dataset")


@runtime_checkable
class Saveable(Protocol):
    """An object with separate files in a checkpoint, such as the data position."""

    def write(self, prefix: str) -> Any:
        """Write files whose names start with `prefix`.

        Returns:
            the JSON-compatible argument `meta` of `read`; or a function that writes the files later, in any thread,
            and returns this value. In the second case, `write` only copies what training would change.
        """

    def read(self, prefix: str, meta: Any) -> None:
        """Restore the state completely or, if that fails, not at all."""


@dataclass
class Snapshot:
    """The content of a checkpoint.

    `check` is called in the writing thread with the values by name, and raises an error if they must not be saved.
    """

    step: int  # the number of completed steps
    variables: dict[str, Any] = field(default_factory=dict)  # tensors, variables or arrays
    saveables: dict[str, Saveable] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)  # everything else, as JSON-compatible values
    check: Callable[[Mapping[str, tf.Tensor]], object] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    Attributes:
        path: the checkpoint's directory.
        meta: the content of meta.json.
    """

    path: Path
    meta: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.meta["step"])

    def tensors(self) -> dict[str, tf.Tensor]:
        """Read all variables as tensors by name.

        Raises:
            CheckpointError: the bundle cannot be read.
        """
        return read_tensors(self.path / BUNDLE) if self.meta["variables"] else {}

    def variables(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read all variables as arrays by name; see `tensors`."""
        return {name: tensor.numpy() for name, tensor in self.tensors().items()}


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: the directory of the checkpoints.
        announce: called with a line of text for the user.
        run_id: the ID of the run. Checkpoints of other runs are not used; None accepts any run.
    """

    def __init__(self, directory: Path, announce: Callable[[str], None] = print, *, run_id: str | None = None) -> None:
        self.directory = directory
        self._announce = announce
        self._run_id = run_id

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, valid or not, in ascending order.

        Raises:
            CheckpointError: the directory cannot be read.
        """
        try:
            return checkpoint_steps(self.directory)
        except OSError as error:
            raise CheckpointError(f"cannot read the checkpoints in {self.directory}: {error.strerror}") from error

    def path(self, step: int) -> Path:
        """Return the directory of a step's checkpoint."""
        return self.directory / f"step-{step:010d}"

    def start(self, snapshot: Snapshot, *, aside: bool = False, keep: bool = False) -> Callable[[], Path]:
        """Start to write a checkpoint. It replaces one of the same step.

        Args:
            snapshot: the content.
            aside: write the checkpoint as ``failed-<step>``, which a resume ignores.
            keep: write nothing if there is a checkpoint of the same step.

        Returns:
            a function that writes the rest and returns the directory. It can be called in any thread.

        Raises:
            CheckpointError: the checkpoint cannot be written; partial files are deleted. The function raises this, too.
        """
        final = self.directory / f"failed-{snapshot.step:010d}" if aside else self.path(snapshot.step)
        if keep and final.exists():
            return lambda: final
        temporary = self.directory / f".tmp-{final.name}-{os.getpid()}"
        with _whole_or_nothing(temporary, final):
            if not self.directory.is_dir():
                self.directory.mkdir(parents=True)
                sync(self.directory.parent)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            # A tensor that was read from a variable keeps its value: the next update of the variable makes a copy.
            tensors = {
                name: tf.constant(value) if isinstance(value, np.ndarray) else tf.convert_to_tensor(value)
                for name, value in snapshot.variables.items()
            }
            parts = {name: one.write(prefix_of(temporary, name)) for name, one in snapshot.saveables.items()}

        def finish() -> Path:
            with _whole_or_nothing(temporary, final):
                _write(temporary, snapshot, tensors, parts)
                old = final.with_name(f"{_REPLACED}{final.name}")
                if os.path.lexists(final):
                    _remove_tree(old)
                    final.rename(old)
                temporary.rename(final)
                sync(self.directory)  # a power failure before this may lose the rename, never a part of the files
                _remove_tree(old)
            return final

        return finish

    def recover(self) -> None:
        """Put back a checkpoint whose replacement was interrupted. The directory must be locked."""
        for path in self.directory.glob(f"{_REPLACED}*"):
            final = path.with_name(path.name.removeprefix(_REPLACED))
            if not os.path.lexists(final):
                with suppress(FileNotFoundError):  # another worker was faster
                    path.rename(final)

    def prune(self, keep: int, *, protected: Set[int] = frozenset()) -> None:
        """Delete all but the newest `keep` checkpoints and those of the `protected` steps."""
        for step in self.steps()[:-keep]:
            self.remove(step, protected=protected)

    def remove(self, step: int, *, protected: Set[int] = frozenset()) -> None:
        """Delete a step's checkpoint, if there is one and the step is not `protected`; warn if that fails."""
        path = self.path(step)
        if step not in protected and os.path.lexists(path):
            # Rename first, so that an interrupted deletion does not leave a directory that looks like a checkpoint.
            doomed = _unused(path.with_name(f".old-{path.name}-{os.getpid()}"))
            try:
                path.rename(doomed)
                _remove_tree(doomed)
            except OSError as error:
                self._announce(f"WARNING: cannot delete the checkpoint {path}: {error.strerror}")

    def delete_leftovers(self) -> None:
        """Delete the remains of interrupted saves and deletions."""
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name.startswith((".tmp-", ".old-", _REPLACED)):
                    _remove_tree(path)

    def newest(self, *, broken: list[Path] | None = None) -> Checkpoint | None:
        """Find the newest valid checkpoint and warn about newer ones that are damaged. No file changes.

        Args:
            broken: a list to which damaged checkpoints are appended, for `set_aside`.

        Returns:
            the checkpoint, or None if there are no checkpoints.

        Raises:
            ExperimentError: a checkpoint is undamaged but has the format of another version of prototrain.
            CheckpointError: there are or were checkpoints, but none of them can be used.
        """
        broken = [] if broken is None else broken
        for step in reversed(self.steps()):
            try:
                checkpoint = verify(self.path(step), run_id=self._run_id)
            except CheckpointError as error:
                self._announce(f"WARNING: {error}")
                broken.append(self.path(step))
                continue
            if broken:
                self._announce(f"WARNING: falling back to the checkpoint of step {step}, {checkpoint.path}")
            return checkpoint
        if unusable := [*broken, *sorted(self.directory.glob(".bad-step-*"), reverse=True)]:
            raise CheckpointError(
                f"none of the checkpoints in {self.directory} can be used; the newest is {unusable[0]}. Restore one "
                f"from a backup, or start again with {FRESH}"
            )
        return None

    def set_all_aside(self) -> Path | None:
        """Move all checkpoints to another directory, and return it; None if there are no checkpoints."""
        if not self.steps():
            return None
        target = _unused(self.directory.with_name(f"{self.directory.name}.superseded"))
        try:
            self.directory.rename(target)
            sync(target.parent)
        except OSError as error:
            raise CheckpointError(f"cannot move {self.directory} out of the way: {error.strerror}") from error
        return target

    def set_aside(self, path: Path) -> None:
        """Rename a damaged checkpoint, so that a resume ignores it; warn if that fails."""
        target = _unused(path.with_name(f".bad-{path.name}"))
        try:
            path.rename(target)
            sync(self.directory)
        except OSError as error:
            self._announce(f"WARNING: cannot set {path} aside: {error.strerror}")
        else:
            self._announce(f"{path.name} is kept as {target}")


@contextmanager
def _whole_or_nothing(temporary: Path, final: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, (OSError, tf.errors.OpError)):
            step = int(final.name.rpartition("-")[2])
            reason = cause(error).rpartition("; ")[2]  # without the temporary name
            raise CheckpointError(f"cannot save step {step} to {final}: {reason}") from error
        raise


def _unused(path: Path) -> Path:
    """Return a path that does not exist: the given path, with a number if necessary."""
    candidate, number = path, 1
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def prefix_of(directory: Path, name: str) -> str:
    """Return the path prefix of the files of a `Saveable` in a checkpoint's directory."""
    quoted = quote(name, safe=" ")  # a name may contain characters that are not allowed in file names
    if quoted.partition(".")[0] in ("", BUNDLE, "meta"):
        quoted = f"%{quoted}"
    return str(directory / quoted)


def _write(directory: Path, snapshot: Snapshot, tensors: Mapping[str, tf.Tensor], parts: Mapping[str, Any]) -> None:
    """Write and sync all files of a checkpoint. Functions in `parts` write the files of their `Saveable`."""
    if snapshot.check is not None:
        snapshot.check(tensors)
    written = {name: part() if callable(part) else part for name, part in parts.items()}
    if tensors:
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=str(directory / BUNDLE),
                tensor_names=[*tensors],
                shape_and_slices=[""] * len(tensors),
                tensors=[*tensors.values()],
            )
    files = sorted(directory.iterdir())
    with ThreadPoolExecutor(_THREADS) as pool:  # a file is read for its facts while the disk writes it
        found, synced = pool.map(_facts, files), pool.map(sync, files)
        facts = dict(zip([path.name for path in files], found, strict=True))
        list(synced)
    meta = {
        "format": FORMAT,
        "step": snapshot.step,
        "variables": {n: {"shape": one.shape.as_list(), "dtype": one.dtype.name} for n, one in tensors.items()},
        "parts": written,
        **snapshot.meta,
        "files": facts,
    }
    text = json.dumps({"sha256": checksum(meta), "meta": meta})
    (directory / META).write_text(text + "\n", encoding="utf-8")
    sync(directory / META)
    sync(directory)


def _facts(path: Path) -> dict[str, Any]:
    """Return the size and digest of a file; raises a CheckpointError if a restore would run a graph in it."""
    if _holds_graph(path):
        raise CheckpointError(
            f"{path} holds a TensorFlow graph, which a restore would run: an iterator that holds datasets cannot be "
            "saved"
        )
    with open(path, "rb", buffering=0) as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def checksum(meta: Any) -> str:
    """Return the checksum of the content of meta.json. It protects against damage, not against forgery."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _holds_graph(path: Path) -> bool:
    """Return whether a file of a saved iterator contains a dataset's graph. The bundle of variables never does.

    The keys of an iterator's state are plain text, each after two @; only the values are compressed.
    """
    if path.name.startswith(f"{BUNDLE}.") or not path.stat().st_size:
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _GRAPH_KEY.search(content) is not None


def read_tensors(prefix: Path | str) -> dict[str, tf.Tensor]:
    """Read all tensors of a TensorFlow checkpoint by name; raises a CheckpointError if that fails."""
    path = require_literal(prefix)
    try:
        with tf.device("CPU:0"):
            dtypes = tf.train.load_checkpoint(path).get_variable_to_dtype_map()
            # Skip variants and resources: they are not values, and decoding them may run code.
            names = [name for name, dtype in dtypes.items() if dtype not in (tf.variant, tf.resource)]
            tensors = tf.raw_ops.RestoreV2(
                prefix=path,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                dtypes=[dtypes[name] for name in names],
            )
    except READ_ERRORS as error:
        raise CheckpointError(f"cannot read the checkpoint {prefix}: {cause(error)}") from error
    return dict(zip(names, tensors, strict=True))


def verify(path: Path, *, run_id: str | None = None) -> Checkpoint:
    """Check every file of a checkpoint against its meta.json.

    Args:
        path: the checkpoint's directory.
        run_id: the ID of the run that the checkpoint must belong to; None accepts any run.

    Returns:
        the verified checkpoint.

    Raises:
        ExperimentError: the checkpoint is undamaged but has the format of another version of prototrain.
        CheckpointError: a file is missing or damaged, or the checkpoint belongs to another run.
    """
    damaged = f"checkpoint {path} is damaged"
    try:
        meta = _read_meta(path)
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda item: _check_file(path, *item), meta["files"].items()))
    except OSError as error:
        raise CheckpointError(f"{damaged}: {error.strerror}: {error.filename}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{damaged}: {META} is not readable") from error
    named = STEP.fullmatch(path.name)
    if named and int(named[1]) != meta["step"]:
        raise CheckpointError(f"{damaged}: its content is of step {meta['step']}")
    if None not in (run_id, meta.get("run_id")) and run_id != meta["run_id"]:
        raise CheckpointError(
            f"checkpoint {path} belongs to another run ({meta['run_id']}); "
            "to load its weights, set model.weights_load_path to it"
        )
    return Checkpoint(path, meta)


def _read_meta(path: Path) -> dict[str, Any]:
    document = json.loads((path / META).read_text(encoding="utf-8"))
    meta: dict[str, Any] = document["meta"]
    if checksum(meta) != document["sha256"]:
        raise CheckpointError(f"checkpoint {path} is damaged: the content of {META} does not match its checksum")
    if meta["format"] != FORMAT:
        raise ExperimentError(
            f"checkpoint {path} has format {meta['format']!r}, and this version of prototrain reads {FORMAT}; "
            "use the version that wrote it"
        )
    if any(type(meta[key]) is not kind for key, kind in _META_TYPES.items()) or not 0 <= meta["step"] < sys.maxsize:
        raise ValueError("not written by a run")
    return meta


def _check_file(path: Path, name: str, expected: dict[str, Any]) -> None:
    if _facts(path / name) != expected:
        raise CheckpointError(f"checkpoint {path} is damaged: the content of {name} does not match its checksum")
