"""The local copy of an experiment at a URL: the state of its files, download and upload.

Object stores cannot rename files. A checkpoint at the URL is complete if it has a meta.json, which is uploaded last and
deleted first.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from prototrain.errors import ExperimentError
from prototrain.experiment.experiment import MARKS, META, MIRRORS, RECORD, STEP, checkpoint_steps, is_own
from prototrain.experiment.lock import LEASE, LOCK
from prototrain.system.files import cache_home, url_of, write_atomic
from prototrain.system.storage import Storage

_NOT_COPIED = (LOCK, LEASE, ".token")
_NOT_DOWNLOADED = "exported/"  # large, and no run reads it


def local_copy(url: str) -> Path:
    """Return the directory of the local copy of an experiment."""
    return cache_home() / MIRRORS / url.replace("://", "/", 1)


def url_of_copy(directory: Path) -> str | None:
    """Return the URL that a directory is the local copy of, or None for any other directory."""
    with suppress(ValueError):
        scheme, *parts = directory.absolute().relative_to(cache_home() / MIRRORS).parts
        return url_of(f"{scheme}://{'/'.join(parts)}") if parts else None
    return None


class Mirror:
    """The files of one experiment, at its URL and in its local copy. `copy` identifies the local copy.

    The methods raise a `StorageError` if the storage fails, and an `OSError` if a local file cannot be used.
    """

    def __init__(self, storage: Storage, directory: Path) -> None:
        self._storage = storage
        self._directory = directory
        self.note = cache_home() / "notes" / f"{hashlib.sha256(storage.url.encode()).hexdigest()[:32]}.json"
        self.recall()

    def recall(self) -> None:
        """Read the notes of an earlier process. Without them, everything is downloaded again."""
        self.copy = uuid.uuid4().hex
        # For each file that is the same on both sides: its size, its modification time, and the mark of the object.
        self._same: dict[str, tuple[int, int, str]] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self.note.read_bytes()) if self._directory.is_dir() else {}
            self._same = {name: (size, time, mark) for name, (size, time, mark) in found["same"].items()}
            self.copy = found["copy"]

    def remember(self) -> None:
        """Write the notes for later processes."""
        self.note.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.note, json.dumps({"copy": self.copy, "same": self._same}), durable=False)

    def _state(self, name: str) -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            found = (self._directory / name).stat()
            return found.st_size, found.st_mtime_ns
        return None

    def _is_changed(self, name: str) -> bool:
        """Return whether a local file has changed since both sides were the same; False if it does not exist."""
        return (state := self._state(name)) is not None and self._same.get(name, ())[:2] != state

    def _unsaved(self) -> list[int]:
        """Return the steps of the local checkpoints that are not uploaded yet."""
        steps = checkpoint_steps(self._directory / "checkpoints")
        return [step for step in steps if self._is_changed(f"{folder_of(step)}/{META}")]

    def _other_files(self) -> Iterator[str]:
        """Yield the local files outside of checkpoints."""
        for path, _, files in os.walk(self._directory):
            at = Path(path).relative_to(self._directory)
            yield from (name for file in files if step_of(name := (at / file).as_posix()) is None and _is_copied(name))

    # -- download -----------------------------------------------------------------------------------------------------

    def download(self, *, whole: bool) -> list[str]:
        """Update the local copy from the URL, with complete checkpoints if `whole`, or only their meta.json.

        Files appear atomically, and the meta.json of a checkpoint comes last. Returns the names of the objects of
        incomplete checkpoints, whose upload was interrupted.

        Raises:
            ExperimentError: the URL holds several experiments or a name that no file can have, or another machine has
                continued the experiment while a local checkpoint was not uploaded.
        """
        there = {name: mark for name, mark in self._storage.listing().items() if _is_copied(name)}
        self._check_names(there)
        steps = _whole_steps(there)
        if unsaved := self._unsaved():
            why = f"the checkpoint of step {unsaved[-1]} in {self._directory} was not uploaded before"
            cure = "delete or move that directory to continue from the URL"
            raise ExperimentError(f"another machine has continued {self._storage}, and {why}; {cure}")
        for name in list(self._other_files()):  # keep the user's files, which were never uploaded
            if name not in there and (name in self._same or is_own(name.partition("/")[0])):
                (self._directory / name).unlink()
        for step in {*checkpoint_steps(self._directory / "checkpoints")} - steps:
            shutil.rmtree(self._directory / folder_of(step))
        cut = [name for name in there if step_of(name) not in (None, *steps)]
        wanted = [
            name
            for name, mark in sorted(there.items(), key=lambda item: _is_meta(item[0]))
            if name not in cut and not name.startswith(_NOT_DOWNLOADED)
            if whole or step_of(name) is None or _is_meta(name)
            if not mark or (*(self._state(name) or ()), mark) != self._same.get(name)
        ]
        scratch = self._directory / f".tmp-copy-{os.getpid()}"
        try:
            self._storage.download({name: scratch / str(number) for number, name in enumerate(wanted)})
            for number, name in enumerate(wanted):
                (self._directory / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(scratch / str(number), self._directory / name)
                self._same[name] = (*(self._state(name) or (0, 0)), there[name])
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._same = {name: same for name, same in self._same.items() if self._state(name)}
        self.remember()
        return cut

    def _check_names(self, names: Iterable[str]) -> None:
        for name in names:
            if {"", ".", ".."} & set(name.split("/")) or "\0" in name:
                raise ExperimentError(f"{self._storage} holds {name!r}, which cannot be a file; no run writes that")
        if "environment.json" not in names and any(name.endswith("/environment.json") for name in names):
            raise ExperimentError(  # runs may be at work in the local copies of those below
                f"{self._storage} is not an experiment; `prototrain runs {self._storage}` lists those below it"
            )

    # -- upload -------------------------------------------------------------------------------------------------------

    def upload(self, check: Callable[[], object] = lambda: None) -> bool:
        """Upload the changed files and at most one checkpoint, the newest; returns whether more checkpoints remain.

        The order lets a run continue from the URL after a kill at any moment. The rows that lead up to a checkpoint are
        uploaded before it. The record, which tells whether there is a checkpoint, is read before the checkpoint is
        uploaded and written afterwards. `check` is called before a checkpoint is completed and may raise an error.
        """
        is_new, state = self._is_changed(RECORD), self._state(RECORD)
        record = (self._directory / RECORD).read_bytes() if is_new else b""
        waiting = self._unsaved()
        self._put(self._changed(name for name in self._other_files() if name != RECORD), self._directory)
        if waiting:
            with suppress(FileNotFoundError, KeyError):  # training has already deleted it
                self._put_checkpoint(folder_of(waiting[-1]), check)
        if state is not None and is_new:
            self._storage.write(RECORD, record)
            self._same[RECORD] = (*state, "")
        gone = [name for name in self._same if self._state(name) is None]
        steps = _whole_steps(self._same)
        if steps and not any((self._directory / folder_of(step)).exists() for step in steps):
            gone = [name for name in gone if step_of(name) != max(steps)]  # kept until another checkpoint is complete
        self._delete(gone)
        self.remember()
        return len(waiting) > 1

    def _put_checkpoint(self, folder: str, check: Callable[[], object]) -> None:
        """Upload a checkpoint through links to its files, so that training can delete it during the upload."""
        meta, links = f"{folder}/{META}", self._directory / f".tmp-copy-{os.getpid()}"
        names = [f"{folder}/{name}" for name in os.listdir(self._directory / folder)]
        self._delete([meta])  # of an earlier checkpoint of this step
        shutil.rmtree(links, ignore_errors=True)
        (links / folder).mkdir(parents=True)
        try:
            states = self._changed(names)
            for name in states:
                os.link(self._directory / name, links / name)
            self._put({name: state for name, state in states.items() if name != meta}, links)
            check()
            self._put({meta: states[meta]}, links)
            self.remember()  # after a kill, the next process must know that it is uploaded
        finally:
            shutil.rmtree(links, ignore_errors=True)

    def _changed(self, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return the states of the changed files, by name."""
        return {name: state for name in names if self._is_changed(name) and (state := self._state(name))}

    def _put(self, states: dict[str, tuple[int, int]], base: Path) -> None:
        """Upload files below `base`. Data that is added during the upload follows the next time."""
        self._storage.upload({name: base / name for name in states})
        self._same |= {name: (*state, "") for name, state in states.items()}

    def clear(self) -> None:
        """Delete every object except the lease; those that identify an experiment go last."""
        names = [name for name in self._storage.listing() if name != LEASE]
        self._delete(sorted(names, key=lambda name: name in MARKS))
        self.remember()

    def _delete(self, names: list[str]) -> None:
        self._storage.delete(sorted(names, key=_is_meta, reverse=True))
        for name in names:
            self._same.pop(name, None)


def folder_of(step: int) -> str:
    """Return the directory of the checkpoint of a step."""
    return f"checkpoints/step-{step:010d}"


def step_of(name: str) -> int | None:
    """Return the step of the checkpoint that a file belongs to, or None."""
    match = re.match(rf"checkpoints/{STEP.pattern}/", name)
    return None if match is None else int(match[1])


def _whole_steps(names: Iterable[str]) -> set[int]:
    return {step for name in names if (step := step_of(name)) is not None and _is_meta(name)}


def _is_meta(name: str) -> bool:
    return name.endswith(f"/{META}")


def _is_copied(name: str) -> bool:
    return not any(part in _NOT_COPIED or part.startswith((".tmp-", ".old-")) for part in name.split("/"))
