"""An experiment at a URL. A run works in a local copy, and a thread uploads its files.

A run takes the lease, downloads the files that it continues from, and uploads each checkpoint when it is finished and
the other files at intervals. If the storage fails or hangs, training continues and the upload is tried again.

Object stores cannot rename files. A checkpoint at the URL is complete if it has a meta.json, which is uploaded last and
deleted first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from prototrain.errors import ExperimentError, StorageError
from prototrain.experiment import lock
from prototrain.experiment.experiment import MARKS, META, MIRRORS, RECORD, STEP, checkpoint_steps, is_own
from prototrain.experiment.lock import LEASE, LOCK, Lease, is_locked
from prototrain.system.files import PathLike, cache_home, local_path, url_of, write_atomic
from prototrain.system.storage import Storage, downloaded
from prototrain.system.terminal import announcing, say

UPLOAD_SECONDS = 30.0
RETRY_SECONDS = 10.0
LAST_SECONDS = 60.0  # how long a failed upload is tried again at the end of a run
_NOT_COPIED = (LOCK, LEASE, ".token")
_NOT_DOWNLOADED = "exported/"  # large, and no run reads it
_CHECKPOINT = re.compile(r"(.+)/(checkpoints/[^/]+(?:/[^/]+)?)")
_WEIGHTS = (".h5", ".hdf5", ".keras", ".npy", ".npz")

Say = Callable[[str], object]


class Remote:
    """The experiment at one URL, as this process sees it. `directory` is the local copy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.storage = Storage(url)
        self.directory = local_copy(url)
        self._mirror = Mirror(self.storage, self.directory)
        self._uploading = threading.Lock()
        self._lease = Lease(self.storage)
        self._is_open = False
        self._lost: ExperimentError | None = None
        self._has_failed = False  # whether `finish` has failed

    def __str__(self) -> str:
        return self.url

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prevent other processes on this machine from changing the local copy."""
        path = self._mirror.note.with_suffix(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._mirror.recall()
                yield
        except OSError as error:
            why = f"{error.strerror}; PROTOTRAIN_CACHE names another place for it"
            raise StorageError(f"cannot keep a copy of {self} in {self.directory}: {why}") from error

    def fetch(self, *, whole: bool = False) -> None:
        """Update the local copy, unless a run on this machine is working in it or was the last one at the URL.

        Complete checkpoints are downloaded if `whole`, otherwise only their meta.json.
        """
        if self._is_open or is_locked(self.directory / LOCK):
            return
        with self._alone(), announcing(f"reading from {self}", partial(say, to_stderr=True)):
            last = self._lease.last()
            if last is None or last.copy != self._mirror.copy:
                self._mirror.download(whole=whole)

    def is_running(self) -> bool:
        """Return whether a run seems to be active."""
        return self._is_open or self._lease.is_held()

    def top(self) -> list[str]:
        """Return the names directly below the URL, without the lease."""
        return sorted({name.partition("/")[0] for name in self.storage.listing()} - {LEASE})

    def keep(self) -> None:
        """Upload files that were written into the local copy outside of a run. An active run uploads them itself."""
        if not is_locked(self.directory / LOCK):
            with self._alone(), announcing(f"uploading to {self}"):
                self._mirror.upload()

    def open(self, announce: Say = print, *, to_clear: bool = False) -> str | None:
        """Take the lease and update the local copy, which this process has locked, unless it is going to be cleared.

        Returns a line of text if a run died with the lease, else None.
        """
        if self._is_open:
            return None
        with self._alone():
            self._lease, self._lost, self._has_failed = Lease(self.storage), None, False
            self._ending, self._woken = threading.Event(), threading.Event()
            self._threads: list[threading.Thread] = []
            last = self._lease.take(self._mirror.copy, announce)
            self._start(self._beat)
            try:
                if not to_clear and (last is None or last.copy != self._mirror.copy):
                    with announcing(f"downloading what the run continues from, {self}", announce):
                        self.storage.delete(self._mirror.download(whole=True))
                self._mirror.remember()
                # Only at the end: if this process is killed earlier, the next one downloads everything again.
                self._lease.beat(copy=self._mirror.copy)
            except BaseException:
                self._stop()
                self._lease.beat(held=False)
                raise
        self._is_open = True
        return f"took over the lease of {last}, which ended without giving it back" if last and last.held else None

    def clear(self) -> None:
        """Delete everything at the URL except the lease."""
        with self._uploading:
            self._mirror.clear()

    def begin(self, announce: Say) -> None:
        """Upload the existing files before the first step, and start the thread that uploads changes."""
        if self._is_open:
            with announcing(f"uploading the beginning of the run to {self}", announce):
                self._upload()
            self._start(lambda: self._upload_changes(announce))

    def wake(self) -> None:
        """Make the thread upload changes now. May be called in any thread."""
        self._woken.set()

    def check(self) -> None:
        """Raise an `ExperimentError` if another run had taken over by the last heartbeat."""
        if self._lost is not None:
            raise self._lost

    def finish(self, announce: Say) -> None:
        """Upload all remaining changes. If that fails for the first time, try again for `LAST_SECONDS`.

        Raises:
            ExperimentError: another run has taken over.
            StorageError: the upload still fails after that time.
        """
        end = time.monotonic() + (0 if self._has_failed else LAST_SECONDS)
        while self._is_open:
            self.check()
            try:
                with announcing(f"uploading what is left to {self}", announce):
                    while self._upload():
                        pass
                return
            except StorageError as error:
                if time.monotonic() + RETRY_SECONDS > end:
                    self._has_failed = True
                    cure = "the same command on this machine uploads it once the storage answers"
                    raise StorageError(f"{error}; the whole run is in {self.directory}: {cure}") from error
                announce(f"WARNING: {error}; trying again for {end - time.monotonic():.0f} s")
                time.sleep(RETRY_SECONDS)

    def close(self, announce: Say) -> None:
        """Release the lease. Changes that are not uploaded yet stay local."""
        if self._is_open:
            self._stop()
            self._is_open = False
            try:
                if self._lost is None:
                    self._lease.beat(held=False)
            except (StorageError, ExperimentError) as error:
                announce(f"WARNING: {error}; other machines have to wait until the lease has expired")

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, name="upload", daemon=True))
        self._threads[-1].start()

    def _stop(self) -> None:
        self._ending.set()
        self._woken.set()
        for thread in self._threads:
            thread.join(lock.LOOK_SECONDS)  # a thread whose storage hangs is left behind

    def _upload(self) -> bool:
        """Upload changes; returns whether more remain."""
        with self._uploading:
            try:
                self._lease.check()
                return self._mirror.upload(self._lease.check)
            except ExperimentError as error:
                self._lost = error
                raise
            except OSError as error:
                raise StorageError(f"cannot copy {error.filename}: {error.strerror}") from error

    def _beat(self) -> None:
        while not self._ending.wait(lock.BEAT_SECONDS) and self._lost is None:
            try:
                self._lease.beat()
            except ExperimentError as error:
                self._lost = error
            except StorageError:
                pass  # the upload thread reports it

    def _upload_changes(self, announce: Say) -> None:
        is_failing = False
        while not self._ending.is_set():
            self._woken.wait(UPLOAD_SECONDS)
            self._woken.clear()
            try:
                while not self._ending.is_set() and self._upload():
                    pass
                if is_failing and not self._ending.is_set():
                    announce(f"uploads to {self} work again, nothing is missing")
                is_failing = False
            except ExperimentError:
                return  # `check` raises it
            except StorageError as error:
                if not is_failing:
                    announce(f"WARNING: {error}; training continues, and the upload is tried again")
                is_failing = True


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
        write_atomic(self.note, json.dumps({"copy": self.copy, "same": self._same}))

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
        self._storage.download({name: self._directory / name for name in wanted}, scratch)
        self._same |= {name: (*state, there[name]) for name in wanted if (state := self._state(name))}
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
        if meta in self._same:  # of an earlier checkpoint of this step
            self._delete([meta])
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
    return not any(part in _NOT_COPIED or part.startswith((".tmp-", ".old-", ".replaced-")) for part in name.split("/"))


def local_copy(url: str) -> Path:
    """Return the directory of the local copy of an experiment."""
    return cache_home() / MIRRORS / url.replace("://", "/", 1)


def url_of_copy(directory: Path) -> str | None:
    """Return the URL that a directory is the local copy of, or None for any other directory."""
    with suppress(ValueError):
        scheme, *parts = directory.absolute().relative_to(cache_home() / MIRRORS).parts
        return url_of(f"{scheme}://{'/'.join(parts)}") if parts else None
    return None


def fetched(path: PathLike) -> Path:
    """Return the local path of an experiment, a checkpoint in it or a file of weights; a copy of a URL is updated."""
    url = url_of(path)
    if url is None:
        return local_path(path)
    if url.endswith(_WEIGHTS):
        return downloaded(url)
    inside = _CHECKPOINT.fullmatch(url)
    remote = Remote(inside[1] if inside else url)
    remote.fetch(whole=True)
    return remote.directory / inside[2] if inside else remote.directory


def experiments_below(url: str) -> list[Path]:
    """Return the directories of the local copies of the experiments at and below a URL, sorted by name."""
    paths = [local_copy(url) / name for name in Storage(url).listing()]
    return sorted(path.parent for path in paths if path.name == "environment.json")
