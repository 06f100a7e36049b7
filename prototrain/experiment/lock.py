"""The lock that keeps two runs out of one directory.

It is the operating system's lock on a file, so it is free again when the process that has it ends, however it ends. The
file says who that is, for messages, and for file systems that have no locks. A forked child shares the open file, and
with it the lock: it closes its copy, so that the lock is the parent's alone.
"""

from __future__ import annotations

import fcntl
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from prototrain.errors import ExperimentError
from prototrain.system.files import open_file
from prototrain.system.signals import tell_of_forks

LOCK = ".lock"
"""The name of the file."""
_LONGEST_HOLDER = 1000  # bytes


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

        Raises:
            ExperimentError: another run has the directory, or it cannot be made or written.
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
        try:
            without = self._lock(file, holder)
        except ExperimentError:
            file.close()
            raise
        self._file = file
        with suppress(OSError):  # a full disk has no room for who holds it
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        taken = f"took over the lock of {holder}, which ended without giving it back" if holder else None
        return without or taken

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
        """Whether the file that this process has locked no longer stands where it was.

        Raises:
            OSError: it cannot be looked at.
        """
        if self._file is None:
            return False
        try:
            return not os.path.samestat(os.stat(self._directory / LOCK), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return True

    def after_fork(self) -> None:
        """Close this child's copy of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def check_free(self) -> None:
        """Fail early if another run has the directory.

        Raises:
            ExperimentError: another run has it.
        """
        if self._file is not None:
            return
        with suppress(FileNotFoundError, NotADirectoryError), _open(self._directory / LOCK) as file:
            self._lock(file, _holder(file))

    def _lock(self, file: IO[bytes], holder: str) -> str | None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError) or _lives(holder):
                raise ExperimentError(
                    f"{self._name} is in use by another run ({holder or 'unknown process'}); "
                    "wait for it, stop it, or choose another trainer.experiment_name"
                ) from None
            return (
                f"WARNING: no lock on {self._directory} can be had ({error.strerror}): see to it yourself that no "
                "other machine has a run there"
            )
        return None


def _open(path: Path, flags: int = os.O_RDONLY) -> IO[bytes]:
    # Without a buffer: what is written has to be there before the lock counts for others.
    return open(open_file(path, flags), "ab+" if flags else "rb", buffering=0)


def _holder(file: IO[bytes]) -> str:
    """The first line of a lock, which names its holder."""
    file.seek(0)
    return file.read(_LONGEST_HOLDER).decode("utf-8", "replace").strip().partition("\n")[0]


def _lives(holder: str) -> bool:
    """Whether a lock names another process of this machine that is alive, for file systems without locks."""
    number, _, host = holder.removeprefix("process ").partition(" on ")
    is_other = number.isdecimal() and int(number) != os.getpid() and host == platform.node()
    return is_other and bool(psutil.pid_exists(int(number)))


def is_locked(path: Path) -> bool:
    """Whether a live process has the lock on a file, which need not exist.

    Looking keeps others from taking the lock at that very moment, so it is for those that need to know.

    Raises:
        OSError: the file cannot be looked at.
    """
    with suppress(FileNotFoundError), _open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError) or _lives(_holder(file))
    return False
