"""A lock that keeps two runs out of one directory.

The operating system locks a file, and releases it when the process that holds the lock ends for any reason. The file
names that process, for messages. A forked child shares the open file and therefore the lock. The child closes its copy,
so that only the parent holds the lock.
"""

from __future__ import annotations

import fcntl
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import IO

from prototrain.errors import ExperimentError
from prototrain.system.signals import watch_forks

LOCK = ".lock"  # the name of the lock file


class DirectoryLock:
    """A run's lock on an experiment directory. `name` is the directory's name in messages, by default its path."""

    def __init__(self, directory: Path, *, name: str | None = None) -> None:
        self._directory = directory
        self._name = name or str(directory)
        self._file: IO[bytes] | None = None
        watch_forks(self)

    def take(self) -> str | None:
        """Create the directory if needed and lock it for this process. Does nothing if this process holds the lock.

        Returns a line of text if a run died with the lock or the file system has no locks, else None. Raises an
        `ExperimentError` if another run holds the lock, or the directory cannot be used.
        """
        if self._file is not None:
            return None
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = _open(self._directory / LOCK, "ab+")  # held while the run lasts
        except OSError as error:
            why = f"{error.strerror} ({error.filename})"
            raise ExperimentError(f"cannot use the experiment directory {self._directory}: {why}") from error
        holder = _holder(file)
        said = f"took over the lock of {holder}, which ended without giving it back" if holder else None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise in_use(self._name, _holder(file)) from None
        except OSError as error:
            said = f"WARNING: cannot lock {self._directory} ({error.strerror}): make sure that no other run uses it"
        self._file = file
        with suppress(OSError):  # the disk may be full
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        return said

    def release(self) -> None:
        """Release the lock if this process holds it."""
        if self._file is not None:
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
