"""The checkpoints of a run: directories that are written atomically and verified when they are read.

``step-<10 digits>/`` is written under a temporary name, synced and renamed. It is never overwritten. There is no index
file: the newest checkpoint is the one with the highest step that passes verification.

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
from prototrain.system.files import literal_prefix, sync
from prototrain.system.terminal import FRESH
from prototrain.system.tracebacks import cause, first_line

FORMAT = 1
BUNDLE = "model"
"""The prefix of the bundle with the variables."""
READ_ERRORS = (OSError, ValueError, IndexError, KeyError, TypeError, RuntimeError, AssertionError, tf.errors.OpError)
_FRESH = f"put one back, or start again with {FRESH}"
_DIGEST = "sha256"  # protects against damage, not against forgery
_THREADS = min(4, os.cpu_count() or 1)
_FILE_BYTES = 2**28  # about the size of one file of a bundle
_META_TYPES = {"step": int, "variables": dict, "parts": dict, "files": dict}
_BUNDLE_FILE = re.compile(r".*\.(index|data-\d+-of-\d+)")
_GRAPH_WORD = b".is_dataset"
_GRAPH_KEY = re.compile(rb"@@[^@\s]{1,200}" + re.escape(_GRAPH_WORD))


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

    Attributes:
        step: the number of completed steps.
        variables: tensors, variables or arrays by name.
        saveables: objects with separate files, by name.
        meta: everything else, as JSON-compatible values.
        check: called in the writing thread with the values by name, before they are written. It raises an error if
            they must not be saved.
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
        return _read_tensors(self.path / BUNDLE)

    def variables(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read all variables as arrays by name; see `tensors`."""
        return read_bundle(self.path / BUNDLE)

    def prefix_of(self, name: str) -> str:
        """Return the path prefix of the files of a `Saveable`."""
        return _prefix_of(self.path, name)


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

    # -- saving -------------------------------------------------------------------------------------------------------

    def save(self, snapshot: Snapshot, *, aside: bool = False) -> Path:
        """Write a checkpoint and return its directory; see `start`."""
        return self.start(snapshot, aside=aside)()

    def start(self, snapshot: Snapshot, *, aside: bool = False) -> Callable[[], Path]:
        """Start to write a checkpoint. An existing valid checkpoint of the same step is kept.

        Args:
            snapshot: the content.
            aside: write the checkpoint as ``failed-<step>``, which a resume ignores.

        Returns:
            a function that writes the rest and returns the directory. It can be called in any thread.

        Raises:
            CheckpointError: the checkpoint cannot be written; partial files are deleted. The function raises this, too.
        """
        final = self.directory / f"failed-{snapshot.step:010d}" if aside else self.path(snapshot.step)
        if not aside and final.exists():
            try:
                verify(final, run_id=self._run_id)
                return lambda: final
            except CheckpointError as error:
                self._announce(f"WARNING: {error}; it is written again")
        temporary = self.directory / f".tmp-{final.name}-{os.getpid()}"
        with _whole_or_nothing(temporary, final):
            if not self.directory.is_dir():
                self.directory.mkdir(parents=True)
                sync(self.directory.parent)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            write_rest = _start_writing(temporary, snapshot)

        def finish() -> Path:
            with _whole_or_nothing(temporary, final):
                write_rest()
                if aside and final.exists():
                    self._delete(final)
                elif os.path.lexists(final) and not self.set_aside(final):
                    raise CheckpointError(f"cannot save step {snapshot.step}: {final} is damaged and cannot be moved")
                temporary.rename(final)
                sync(self.directory)  # a power failure before this may lose the rename, never a part of the files
            return final

        return finish

    # -- deleting -----------------------------------------------------------------------------------------------------

    def prune(self, keep: int, *, protected: Set[int] = frozenset()) -> None:
        """Delete all but the newest `keep` checkpoints and those of the `protected` steps."""
        for step in self.steps()[:-keep]:
            self.remove(step, protected=protected)

    def remove(self, step: int, *, protected: Set[int] = frozenset()) -> None:
        """Delete a step's checkpoint, if there is one and the step is not `protected`; warn if that fails."""
        path = self.path(step)
        if step not in protected and os.path.lexists(path):
            try:
                self._delete(path)
            except OSError as error:
                self._announce(f"WARNING: cannot delete the checkpoint {path}: {error.strerror}")

    def sweep(self) -> None:
        """Delete the remains of interrupted saves and deletions."""
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name.startswith((".tmp-", ".old-")):
                    _remove_tree(path)

    def _delete(self, path: Path) -> None:
        # Rename first, so that an interrupted deletion does not leave a directory that looks like a checkpoint.
        doomed = _unused(path.with_name(f".old-{path.name}-{os.getpid()}"))
        path.rename(doomed)
        _remove_tree(doomed)

    # -- restoring ----------------------------------------------------------------------------------------------------

    def newest(
        self, check: Callable[[Checkpoint], object] | None = None, *, broken: list[Path] | None = None
    ) -> Checkpoint | None:
        """Find the newest valid checkpoint and warn about newer ones that are damaged. No file changes.

        Args:
            check: raises a CheckpointError if an undamaged checkpoint cannot be used.
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
                if check is not None:
                    check(checkpoint)
            except CheckpointError as error:
                self._announce(f"WARNING: {error}")
                broken.append(self.path(step))
                continue
            if broken:
                self._announce(f"WARNING: falling back to the checkpoint of step {step}, {checkpoint.path}")
            return checkpoint
        if broken:
            raise CheckpointError(f"none of the {len(broken)} checkpoints in {self.directory} can be used; {_FRESH}")
        if aside := sorted(self.directory.glob(".bad-step-*")):
            raise CheckpointError(
                f"all checkpoints in {self.directory} are damaged or not finite, the last is {aside[-1]}; {_FRESH}"
            )
        return None

    def run_id(self) -> str | None:
        """Return the run ID in the newest valid checkpoint, or None."""
        for step in reversed(self.steps()):
            with suppress(CheckpointError):
                found = verify(self.path(step)).meta.get("run_id")
                return found if isinstance(found, str) else None
        return None

    def set_all_aside(self) -> Path | None:
        """Move all checkpoints to another directory, so that a run can start from step 0 without losing them.

        Returns:
            the new directory, or None if there are no checkpoints.

        Raises:
            CheckpointError: the checkpoints cannot be moved.
        """
        if not self.steps():
            return None
        number = 1
        while (target := self.directory.with_name(f"{self.directory.name}.superseded-{number}")).exists():
            number += 1
        try:
            self.directory.rename(target)
            sync(target.parent)
        except OSError as error:
            raise CheckpointError(f"cannot move {self.directory} out of the way: {error.strerror}") from error
        return target

    def set_aside(self, path: Path) -> bool:
        """Rename a damaged checkpoint, so that a resume ignores it.

        Returns:
            whether the checkpoint was renamed.
        """
        target = _unused(path.with_name(f".bad-{path.name}"))
        try:
            path.rename(target)
            sync(self.directory)
        except OSError as error:
            self._announce(f"WARNING: cannot set {path} aside: {error.strerror}")
            return False
        self._announce(f"{path.name} is kept as {target}")
        return True


@contextmanager
def _whole_or_nothing(temporary: Path, final: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, (OSError, tf.errors.OpError)):
            step = int(final.name.rpartition("-")[2])
            is_op = isinstance(error, tf.errors.OpError)
            reason = cause(error).rpartition("; ")[2] if is_op else first_line(error)  # without the temporary name
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


def _prefix_of(directory: Path, name: str) -> str:
    quoted = quote(name, safe=" ")  # a name may contain characters that are not allowed in file names
    if quoted.partition(".")[0] in ("", BUNDLE, "meta"):
        quoted = f"%{quoted}"
    return str(directory / quoted)


# -- writing the files -------------------------------------------------------------------------------------------------


def _start_writing(directory: Path, snapshot: Snapshot) -> Callable[[], None]:
    """Copy everything that training would change.

    Returns:
        a function that writes and syncs all files. It can be called in any thread.
    """
    # A tensor that was read from a variable keeps its value: the next update of the variable makes a copy.
    tensors = {
        name: tf.constant(value) if isinstance(value, np.ndarray) else tf.convert_to_tensor(value)
        for name, value in snapshot.variables.items()
    }
    written = {name: one.write(_prefix_of(directory, name)) for name, one in snapshot.saveables.items()}

    def finish() -> None:
        if snapshot.check is not None:
            snapshot.check(tensors)
        parts = {name: rest() if callable(rest) else rest for name, rest in written.items()}
        if tensors:
            _write_bundle(directory / BUNDLE, tensors)
        meta = {
            "format": FORMAT,
            "step": snapshot.step,
            "variables": {n: {"shape": one.shape.as_list(), "dtype": one.dtype.name} for n, one in tensors.items()},
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
        if _holds_graph(path):
            raise CheckpointError(
                f"the state in {path.name} cannot be saved: it is an iterator that holds datasets, and a restore would "
                "have to run their graphs"
            )
    with ThreadPoolExecutor(_THREADS) as pool:  # a file is read for its digest while the disk writes it
        started = [(path, pool.submit(_digest, path), pool.submit(sync, path)) for path in files]
    for _, _, synced in started:
        synced.result()
    return {path.name: {"size": path.stat().st_size, _DIGEST: digest.result()} for path, digest, _ in started}


def _write_bundle(prefix: Path, tensors: Mapping[str, tf.Tensor]) -> None:
    """Write a bundle of tensors. Large bundles have several files, since TensorFlow writes each with one thread."""
    parts: list[dict[str, tf.Tensor]] = []
    size = _FILE_BYTES
    for name, tensor in tensors.items():
        if size >= _FILE_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.shape.num_elements() * tensor.dtype.size

    def write(prefix: str, tensors: dict[str, tf.Tensor]) -> None:
        with tf.device("CPU:0"):
            slices = [""] * len(tensors)
            tf.raw_ops.SaveV2(
                prefix=prefix, tensor_names=[*tensors], shape_and_slices=slices, tensors=[*tensors.values()]
            )

    prefixes = [f"{prefix}-{number}" for number in range(len(parts))]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(write, prefixes, parts))
    with tf.device("CPU:0"):
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes, destination_prefix=str(prefix), delete_old_dirs=False
        )


def checksum(meta: Any) -> str:
    """Return the checksum of the content of meta.json, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _digest(path: Path) -> str:
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, _DIGEST).hexdigest()


def _holds_graph(path: Path) -> bool:
    """Return whether a file of a saved iterator contains a dataset's graph. The bundle of variables never does.

    The keys of an iterator's state are plain text, each after two @; only the values are compressed.
    """
    if path.name.startswith(f"{BUNDLE}.") or not path.stat().st_size:
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        # Search for the word first, which is faster: most files do not contain it.
        return content.find(_GRAPH_WORD) >= 0 and _GRAPH_KEY.search(content) is not None


# -- reading and verifying ---------------------------------------------------------------------------------------------


def _read_tensors(prefix: Path | str) -> dict[str, tf.Tensor]:
    try:
        with literal_prefix(prefix) as path, tf.device("CPU:0"):
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
        raise CheckpointError(f"cannot read the checkpoint {prefix}: {first_line(error)}") from error
    return dict(zip(names, tensors, strict=True))


def read_bundle(prefix: Path | str) -> dict[str, np.ndarray[Any, Any]]:
    """Read all tensors of a TensorFlow checkpoint by name, as arrays.

    Raises:
        CheckpointError: there is no checkpoint with this prefix, or it cannot be read.
    """
    return {name: tensor.numpy() for name, tensor in _read_tensors(prefix).items()}


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
            for checked in [pool.submit(_check_file, path, *file) for file in meta["files"].items()]:
                checked.result()
        for file in path.iterdir():
            if file.name not in meta["files"] and _BUNDLE_FILE.fullmatch(file.name):
                raise CheckpointError(f"{damaged}: {file.name} does not belong to it")
    except OSError as error:
        raise CheckpointError(f"{damaged}: {error.strerror}: {error.filename}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{damaged}: {META} is not readable") from error
    named = STEP.fullmatch(path.name)
    if named and int(named[1]) != meta["step"]:
        raise CheckpointError(f"{damaged}: its content is of step {meta['step']}")
    if None not in (run_id, meta.get("run_id")) and run_id != meta["run_id"]:
        raise CheckpointError(
            f"checkpoint {path} is of another run ({meta['run_id']}); "
            "to start from its weights, name it in model.weights_load_path"
        )
    return Checkpoint(path, meta)


def _read_meta(path: Path) -> dict[str, Any]:
    file = path / META
    if file.exists() and not file.is_file():
        raise ValueError("not a file")  # opening a pipe would block forever
    document = json.loads(file.read_text(encoding="utf-8"))
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
    if _holds_graph(file):
        raise CheckpointError(f"checkpoint {path}: {name} holds a TensorFlow graph, which a restore would run")
