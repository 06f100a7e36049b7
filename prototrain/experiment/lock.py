"""The lock that keeps two runs out of one directory.

It is the operating system's lock on a file, so it is free again when the process that has it ends, however it ends. The
file names that process, for messages. A forked child shares the open file, and with it the lock: it closes its copy, so
that the lock is the parent's alone.
"""

from __future__ import annotations

import fcntl
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import IO

from prototrain.errors import ExperimentError
from prototrain.system.files import open_file
from prototrain.system.signals import tell_of_forks

LOCK = ".lock"
"""The name of the file."""


class DirectoryLock:
    """The lock of an experiment's directory, from the side of one run.

    Args:
        directory: what is locked.
        name: of the directory in messages, if another one.
    """

    def __init__(self, directory: Path, *, name: str | None = None) -> None:
        self._directory = directory
        self._name = name or str(directory)
        self._file: IO[bytes] | None = None
        tell_of_forks(self)

    def take(self) -> str | None:
        """Make the directory if need be and take it for this process; once more does nothing.

        Returns:
            a line about a run that died with the lock, or about a file system that has no locks, or None.
        """
        if self._file is not None:
            return None
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = _open(self._directory / LOCK, os.O_RDWR | os.O_APPEND | os.O_CREAT)  # held while the run lasts
        except OSError as error:
            raise ExperimentError(
                f"cannot use the experiment directory {self._directory}: {error.strerror} ({error.filename})"
            ) from error
        holder = _holder(file)
        said = f"took over the lock of {holder}, which ended without giving it back" if holder else None
        try:
            reason = self._lock(file)
        except ExperimentError:
            file.close()
            raise
        if reason is not None:
            said = (
                f"WARNING: no lock on {self._directory} can be had ({reason}): see to it yourself that no "
                "other process has a run there"
            )
        self._file = file
        with suppress(OSError):  # a full disk has no room for who holds it
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        return said

    def give_back(self) -> None:
        """Let the lock go, if this process has it."""
        if self._file is not None:
            with suppress(OSError), self._file:
                with suppress(OSError):
                    self._file.truncate(0)
                # Closing alone would leave the lock to copies of the file that were made behind Python's back.
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file = None

    def is_lost(self) -> bool:
        """Whether the file that this process has locked was deleted, moved or replaced."""
        try:
            return self._file is not None and not os.path.samestat(
                os.stat(self._directory / LOCK), os.fstat(self._file.fileno())
            )
        except FileNotFoundError:
            return True

    def after_fork(self) -> None:
        """Close this child's copy of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def check_free(self) -> None:
        """Fail early if another run has the directory."""
        if self._file is None:
            with suppress(FileNotFoundError, NotADirectoryError), _open(self._directory / LOCK) as file:
                self._lock(file)

    def _lock(self, file: IO[bytes]) -> str | None:
        """Lock the file; returns the reason if the file system has no locks."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExperimentError(
                f"{self._name} is in use by another run ({_holder(file) or 'unknown process'}); "
                "wait for it, stop it, or choose another trainer.experiment_name"
            ) from None
        except OSError as error:
            return error.strerror
        return None


def _open(path: Path, flags: int = os.O_RDONLY) -> IO[bytes]:
    # Without a buffer: what is written has to be there before the lock counts for others.
    return open(open_file(path, flags), "ab+" if flags else "rb", buffering=0)


def _holder(file: IO[bytes]) -> str:
    """The first line of a lock, which names its holder."""
    file.seek(0)
    return file.read(1000).decode("utf-8", "replace").strip().partition("\n")[0]


def is_locked(path: Path) -> bool:
    """Whether a live process has the lock on a file, which need not exist.

    Looking keeps others from taking the lock at that very moment, so it is for those that need to know.
    """
    with suppress(FileNotFoundError), _open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
    return False
