"""The locks that keep two runs out of one experiment: of a directory, and of a URL.

In a directory, the operating system locks a file, and releases it when the process that holds the lock ends for any
reason. The file names that process, for messages. A forked child shares the open file and therefore the lock. The child
closes its copy, so that only the parent holds the lock.

Object stores have no locks. At a URL, a run holds a lease instead: an object with a heartbeat.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from prototrain.errors import ExperimentError
from prototrain.system.signals import watch_forks
from prototrain.system.terminal import one_line

if TYPE_CHECKING:
    from prototrain.system.storage import Storage

LOCK = ".lock"  # the name of the lock file
LEASE = ".lease"  # the name of the object with the lease
BEAT_SECONDS = 15.0
SILENT_SECONDS = 60.0  # how long a holder must be silent before another run can take over
LOOK_SECONDS = 5.0


class DirectoryLock:
    """A run's lock on an experiment directory. `name` is the directory's name in messages, by default its path."""

    def __init__(self, directory: Path, *, name: str | None = None) -> None:
        self._directory = directory
        self._name = name or str(directory)
        self._file: IO[bytes] | None = None
        self._created: list[Path] = []  # directories, innermost first
        watch_forks(self)

    def take(self) -> str | None:
        """Create the directory if needed and lock it for this process. Does nothing if this process holds the lock.

        Returns a line of text if a run died with the lock or the file system has no locks, else None. Raises an
        `ExperimentError` if another run holds the lock, or the directory cannot be used.
        """
        if self._file is not None:
            return None
        parents = (self._directory, *self._directory.parents)
        self._created = [path for path in parents if not path.exists()]
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = _open(self._directory / LOCK, "ab+")  # held while the run lasts
        except OSError as error:
            why = f"{error.strerror} ({error.filename})"
            raise ExperimentError(f"cannot use the experiment directory {self._directory}: {why}") from error
        holder = _holder(file)
        message = f"took over the lock of {holder}, which ended without releasing it" if holder else None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise in_use(self._name, _holder(file)) from None
        except OSError as error:
            message = f"WARNING: cannot lock {self._directory} ({error.strerror}): make sure that no other run uses it"
        self._file = file
        if self.is_lost():  # a run that was refused has just deleted it
            self.release()
            return self.take()
        with suppress(OSError):  # the disk may be full
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        return message

    def release(self, *, refused: bool = False) -> None:
        """Release the lock if this process holds it.

        If the run was `refused`, directories that `take` has created are deleted, unless there is something in them.
        """
        if self._file is not None:
            with suppress(OSError):
                if refused and self._created and not self.is_lost() and os.listdir(self._directory) == [LOCK]:
                    (self._directory / LOCK).unlink()
                    for path in self._created:
                        path.rmdir()
            with suppress(OSError), self._file:
                with suppress(OSError):
                    self._file.truncate(0)
                # Closing alone is not enough: a copy of the file that Python does not know of would keep the lock.
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file = None

    def is_lost(self) -> bool:
        """Return whether the file that this process has locked was deleted, moved or replaced."""
        if self._file is None:
            return False
        with suppress(FileNotFoundError):
            return not os.path.samestat(os.stat(self._directory / LOCK), os.fstat(self._file.fileno()))
        return True

    def after_fork(self) -> None:
        """Close the child's copy of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def check_free(self) -> None:
        """Raise an `ExperimentError` if another run holds the lock."""
        path = self._directory / LOCK
        if self._file is None and is_locked(path):
            with _open(path) as file:
                raise in_use(self._name, _holder(file))


def in_use(name: str, holder: object) -> ExperimentError:
    """Return the error for an experiment that another run uses."""
    cure = "wait for it, stop it, or choose another trainer.experiment_name"
    return ExperimentError(f"{name} is in use by another run ({holder or 'unknown process'}); {cure}")


def _open(path: Path, mode: str = "rb") -> IO[bytes]:
    # Unbuffered, so that other processes can read the name of the holder at once.
    return open(path, mode, buffering=0)


def _holder(file: IO[bytes]) -> str:
    """Return the first line of a lock file, which names the holder."""
    file.seek(0)
    return file.read(1000).decode("utf-8", "replace").strip().partition("\n")[0]


def is_locked(path: Path) -> bool:
    """Return whether a live process holds the lock on a file. The file need not exist.

    The check takes the lock for a moment, which can keep a run from starting. Call it only where necessary. Raises an
    `OSError` if the lock cannot be read.
    """
    with suppress(FileNotFoundError, NotADirectoryError), _open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
    return False


class Holder(NamedTuple):
    """The run that holds the lease, or held it last."""

    process: int
    host: str
    run: str  # unique for each lease
    copy: str = ""  # the identifier of its local copy, once that is complete
    held: bool = True  # until the lease is released
    beat: float = 0.0  # the last heartbeat, in seconds since the epoch by the holder's clock

    def __str__(self) -> str:
        return f"process {self.process} on {one_line(self.host)}"


class Lease:
    """The lease of one experiment, as one process sees it.

    The object remains when the lease is released, because it names the local copy that was written last. Every method
    raises a `StorageError` if the storage fails.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._own: Holder | None = None

    def last(self) -> Holder | None:
        """Return the last holder, or None if there was none."""
        content = self._storage.read(LEASE)
        try:
            return None if content is None else Holder(**json.loads(content))
        except (ValueError, TypeError, RecursionError):  # not written by a run
            return Holder(0, "an unknown machine", "")

    def is_held(self) -> bool:
        """Return whether a run is active, provided that the clocks of both machines agree."""
        holder = self.last()
        return holder is not None and holder.held and time.time() - holder.beat < SILENT_SECONDS

    def take(self, copy: str, announce: Callable[[str], object]) -> Holder | None:
        """Take the lease once its holder has released it or is known to be dead; returns the last holder.

        `copy` is the identifier of the local copy, which this process has locked. Raises an `ExperimentError` if
        another run holds the lease.
        """
        self._storage.listing(LEASE)  # unlike `read`, this names the reason if the storage refuses
        last = self.last()
        # A holder of the same copy has ended, because this process holds the lock of the copy.
        if last is not None and last.held and (last.copy, last.host) != (copy, platform.node()):
            last = self._wait(last, announce)
        own = Holder(os.getpid(), platform.node(), uuid.uuid4().hex, beat=time.time())
        if last is not None:
            if self.last() != last:  # another run has begun at the same time
                raise in_use(str(self._storage), self.last())
            self._storage.delete([LEASE])
        if not self._storage.write(LEASE, json.dumps(own._asdict()).encode(), is_new=True):
            raise in_use(str(self._storage), self.last())
        self._own = own
        return last

    def _wait(self, holder: Holder, announce: Callable[[str], object]) -> Holder | None:
        patience = f"waiting up to {SILENT_SECONDS:.0f} s for a heartbeat"
        announce(f"{self._storage} is in use by {holder}, unless that was killed: {patience}")
        waited = 0.0
        while waited < SILENT_SECONDS:
            time.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
            now = self.last()
            if now is None or not now.held:
                return now
            if now != holder:  # compares heartbeats, because the clocks of two machines may differ
                raise in_use(str(self._storage), now)
        return holder

    def check(self) -> None:
        """Raise an `ExperimentError` if another run has taken over."""
        holder = self.last()
        if self._own is not None and holder is not None and holder.run != self._own.run:
            raise ExperimentError(f"another run ({holder}) has taken over {self._storage}; this one ends")

    def beat(self, **changes: Any) -> None:
        """Write a heartbeat, with changed attributes of the `Holder` if given. Raises the error of `check`."""
        self.check()
        if self._own is not None:
            self._own = self._own._replace(beat=time.time(), **changes)
            self._storage.write(LEASE, json.dumps(self._own._asdict()).encode())
