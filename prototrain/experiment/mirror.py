"""The local copy of an experiment at a URL: which files are the same on both sides, download, and upload.

Object stores have no rename. A checkpoint at the URL is whole when its meta.json is there, which is uploaded last and
deleted first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prototrain.errors import ExperimentError
from prototrain.experiment.lease import LEASE
from prototrain.experiment.lock import LOCK
from prototrain.experiment.names import META, MIRRORS, STEP, checkpoint_steps, is_own
from prototrain.system.files import write_atomic
from prototrain.system.storage import Storage
from prototrain.system.urls import cache_home, url_of

_TEMPORARY = (".tmp-", ".old-")
_NOT_COPIED = (LOCK, LEASE, ".token")
_NOT_DOWNLOADED = "exported/"  # large, and no run reads it
_RECORD = "run.json"
_MARKS = ("config.json", "environment.json")


def local_copy(url: str) -> Path:
    """The directory of the local copy of an experiment."""
    return cache_home() / MIRRORS / url.replace("://", "/", 1)


def url_of_copy(directory: Path) -> str | None:
    """The URL whose local copy a directory is; None for any other directory."""
    with suppress(ValueError):
        scheme, *parts = directory.absolute().relative_to(cache_home() / MIRRORS).parts
        return url_of(f"{scheme}://{'/'.join(parts)}") if parts else None
    return None


class Mirror:
    """The files of one experiment at a URL and in its local copy.

    Its methods raise a `StorageError` if the storage fails, and an `OSError` if a local file cannot be used.

    Args:
        storage: of the experiment.
        directory: of the local copy.

    Attributes:
        copy: identifies the local copy.
        is_whole: whether it has all files of the experiment as of the last run in it.
    """

    def __init__(self, storage: Storage, directory: Path) -> None:
        self._storage = storage
        self._directory = directory
        self.note = cache_home() / "notes" / f"{hashlib.sha256(storage.url.encode()).hexdigest()[:32]}.json"
        self.recall()

    def recall(self) -> None:
        """Read what an earlier process has noted."""
        self.copy, self.is_whole = uuid.uuid4().hex, False
        self._same: dict[str, tuple[int, int, str]] = {}  # size and time of files that are the same; mark of the object
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            found = json.loads(self.note.read_bytes())
            self._same = {name: (int(size), int(time), str(mark)) for name, (size, time, mark) in found["same"].items()}
            self.copy, self.is_whole = str(found["copy"]), bool(found["is_whole"])

    def remember(self, *, is_whole: bool | None = None) -> None:
        """Note what is known, for later processes; without the note everything is downloaded again."""
        self.is_whole = self.is_whole if is_whole is None else is_whole
        content = {"url": self._storage.url, "copy": self.copy, "is_whole": self.is_whole, "same": self._same}
        self.note.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.note, json.dumps(content), durable=False)

    def _state(self, name: str) -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            found = (self._directory / name).stat()
            return found.st_size, found.st_mtime_ns
        return None

    def _is_changed(self, name: str) -> bool:
        """Whether a local file differs from what was last the same on both sides; False if it does not exist."""
        return (state := self._state(name)) is not None and self._same.get(name, ())[:2] != state

    def _other_files(self) -> Iterator[str]:
        """The local files that belong to no checkpoint."""
        for path, below, files in os.walk(self._directory):
            at = Path(path).relative_to(self._directory)
            is_checkpoints = at == Path("checkpoints")
            below[:] = [one for one in below if _is_copied(one) and not (is_checkpoints and STEP.fullmatch(one))]
            yield from ((at / name).as_posix() for name in files if _is_copied(name))

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        path = self._directory / f".tmp-copy-{os.getpid()}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    # -- download -----------------------------------------------------------------------------------------------------

    def download(self, announce: Callable[[str], object], *, whole: bool) -> list[str]:
        """Make the local copy what is at the URL. A file appears whole, and meta.json is the last one of a checkpoint.

        Args:
            announce: called with a line of text about checkpoints that were never uploaded.
            whole: download checkpoints as well, not only their meta.json.

        Returns:
            the names of objects in checkpoints that are not whole, because their upload was cut short.

        Raises:
            ExperimentError: the URL is not that of an experiment.
        """
        listed = self._storage.listing().items()
        there = {name: mark for name, mark in listed if all(map(_is_copied, name.split("/")))}
        self._check_names(there)
        steps = _whole_steps(there)
        cut = [name for name in there if step_of(name) not in (None, *steps)]
        self._set_unsaved_aside(announce)
        for name in list(self._other_files()):  # a file of the user that never was there stays
            if name not in there and (name in self._same or is_own(name.partition("/")[0])):
                (self._directory / name).unlink()
        for step in {*checkpoint_steps(self._directory / "checkpoints")} - steps:
            shutil.rmtree(self._directory / folder_of(step))
        wanted = [
            name
            for name, mark in there.items()
            if name not in cut and not name.startswith(_NOT_DOWNLOADED)
            if whole or step_of(name) is None or name.endswith(f"/{META}")
            if not mark or (*(self._state(name) or ()), mark) != self._same.get(name)
        ]
        if wanted:
            with self._scratch() as scratch:
                parts = {name: scratch / str(number) for number, name in enumerate(sorted(wanted, key=_is_meta))}
                self._storage.download(parts)
                for name, part in parts.items():
                    (self._directory / name).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(part, self._directory / name)
                    self._same[name] = (*(self._state(name) or (0, 0)), there[name])
        self._same = {name: same for name, same in self._same.items() if self._state(name)}
        self.remember()
        return cut

    def _check_names(self, names: Collection[str]) -> None:
        for name in names:
            if {"", ".", ".."} & set(name.split("/")) or "\0" in name:
                raise ExperimentError(f"{self._storage} holds {name!r}, which cannot be a file; no run writes that")
        below = sorted({name.partition("/")[0] for name in names if name.endswith("/environment.json")})
        if below and "environment.json" not in names:  # runs may be at work in the local copies of those
            raise ExperimentError(
                f"{self._storage} is not an experiment, but holds {', '.join(below[:3])}; `prototrain runs "
                f"{self._storage}` lists all"
            )

    def _set_unsaved_aside(self, announce: Callable[[str], object]) -> None:
        """Keep a local checkpoint that was never uploaded, while another machine has continued the run."""
        steps = checkpoint_steps(self._directory / "checkpoints")
        unsaved = [step for step in steps if self._is_changed(f"{folder_of(step)}/{META}")]
        if not unsaved:
            return
        aside = cache_home() / "unsaved" / f"{self._directory.name}-{uuid.uuid4().hex[:8]}"
        aside.mkdir(parents=True)
        for name in os.listdir(self._directory):
            if is_own(name) and name != LOCK:
                os.rename(self._directory / name, aside / name)
        announce(
            f"WARNING: another machine has continued {self._storage}; the checkpoint of step {unsaved[-1]}, which was "
            f"not uploaded, is kept in {aside}"
        )

    # -- upload -------------------------------------------------------------------------------------------------------

    def upload(self, check: Callable[[], object] = lambda: None) -> bool:
        """Upload what has changed, and at most one checkpoint.

        A run that is killed at any moment can be continued from what is there: the rows that lead up to a checkpoint
        are uploaded before it, and the record, which tells whether there is a checkpoint, after it.

        Args:
            check: called before a checkpoint becomes whole; raises if it must not.

        Returns:
            whether there are more checkpoints to upload.
        """
        with self._scratch() as scratch:
            record = self._hold(scratch, [_RECORD], shutil.copyfile)
            waiting = self._waiting()
            names = [name for name in self._other_files() if name != _RECORD]
            self._put(scratch, self._hold(scratch, names, shutil.copyfile))
            if waiting:
                self._put_checkpoint(scratch, folder_of(waiting[0]), check)
            self._put(scratch, record)
        steps = _whole_steps(self._same)
        has_any = any((self._directory / folder_of(step)).exists() for step in steps)
        spared = None if has_any else max(steps, default=None)  # the last whole one stays until another one is
        gone = [name for name in self._same if self._state(name) is None]
        self._delete([name for name in gone if spared is None or step_of(name) != spared])
        self.remember()
        return len(waiting) > 1

    def _waiting(self) -> list[int]:
        """The steps of checkpoints that are not uploaded: the best ones, which others refer to, then the newest."""
        folder, best = self._directory / "checkpoints", set()
        for path in folder.glob("m[ai][nx]-*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                best.add(json.loads(path.read_bytes())["step"])
        waiting = [step for step in checkpoint_steps(folder) if self._is_changed(f"{folder_of(step)}/{META}")]
        return sorted(waiting, key=lambda step: (step in best, step), reverse=True)

    def _put_checkpoint(self, scratch: Path, folder: str, check: Callable[[], object]) -> None:
        meta = f"{folder}/{META}"
        with suppress(FileNotFoundError):  # training has deleted it
            names = [f"{folder}/{name}" for name in os.listdir(self._directory / folder)]
            self._storage.delete([meta])  # of an earlier checkpoint of this step
            self._same.pop(meta, None)
            held = self._hold(scratch, names, os.link)  # which keeps the files if training deletes them now
            if meta in held:
                self._put(scratch, {name: state for name, state in held.items() if name != meta})
                check()
                self._put(scratch, {meta: held[meta]})
                self.remember()  # a process that is killed now must not take it for one that was not uploaded

    def _hold(
        self, folder: Path, names: Iterable[str], take: Callable[[Path, Path], object]
    ) -> dict[str, tuple[int, int]]:
        """Link or copy changed files into a folder, so that they stay as they are while they are uploaded."""
        held = {}
        for name in names:
            state = self._state(name)
            if state is not None and self._is_changed(name):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    take(self._directory / name, folder / name)
                    held[name] = state
        return held

    def _put(self, folder: Path, held: dict[str, tuple[int, int]]) -> None:
        self._storage.upload({name: folder / name for name in held})
        self._same |= {name: (*state, "") for name, state in held.items()}

    def clear(self) -> None:
        """Delete every object but the lease: first what a run looks for, last what marks an experiment."""
        names = [name for name in self._storage.listing() if name != LEASE]
        ranks = dict.fromkeys((_RECORD, "metrics.jsonl"), 0) | dict.fromkeys(_MARKS, 2)
        self._delete(sorted(names, key=lambda name: ranks.get(name, 1)))
        self.remember(is_whole=True)

    def _delete(self, names: list[str]) -> None:
        self._storage.delete(sorted(names, key=_is_meta, reverse=True))
        for name in names:
            self._same.pop(name, None)


def folder_of(step: int) -> str:
    """The directory of the checkpoint of a step."""
    return f"checkpoints/step-{step:010d}"


def step_of(name: str) -> int | None:
    """The step of the checkpoint that a file belongs to."""
    parts = name.split("/")
    match = STEP.fullmatch(parts[1]) if len(parts) > 2 and parts[0] == "checkpoints" else None
    return None if match is None else int(match[1])


def _whole_steps(names: Iterable[str]) -> set[int]:
    return {step for name in names if (step := step_of(name)) is not None and _is_meta(name)}


def _is_meta(name: str) -> bool:
    return name.endswith(f"/{META}")


def _is_copied(name: str) -> bool:
    return name not in _NOT_COPIED and not name.startswith(_TEMPORARY)
