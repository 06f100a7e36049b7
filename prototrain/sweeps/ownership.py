"""Who is running a trial, so that nobody else does, and so that a trial whose process is gone is taken up again.

Two signs are needed. A lock on a file in the base directory is free at the very moment when the last process that had
it has ended, however it ended: the sweep's own, and the trial's, which inherits it. It says nothing to a machine that
has another file system; for that one the study holds when the owner was last alive.
"""

from __future__ import annotations

import fcntl
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import psutil

from prototrain.errors import SweepError
from prototrain.experiment.lock import is_locked
from prototrain.system.contained import open_file
from prototrain.system.forks import tell_of_forks

BEAT_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 5 * BEAT_SECONDS
"""How long an owner on another file system may be silent; far more than clocks of machines differ."""
ME: Final = uuid.uuid4().hex


def signature(*, alive: bool = True) -> dict[str, Any]:
    """What the study says of a trial that this process owns, or has given back."""
    return {"id": ME, "host": platform.node(), "process": os.getpid(), "alive": time.time() if alive else 0}


def is_silent(owner: Mapping[str, Any]) -> bool:
    """Whether an owner has given its trial back, or has not been heard of for too long."""
    return time.time() - float(owner["alive"]) > GRACE_SECONDS


def has_ended(owner: Mapping[str, Any]) -> bool:
    """Whether an owner's process was on this machine and is no more."""
    return owner["host"] == platform.node() and not psutil.pid_exists(int(owner["process"]))


def is_held(path: Path) -> bool:
    """Whether a live process has the lock on a file.

    Raises:
        SweepError: it is no file, or cannot be read.
    """
    try:
        return is_locked(path)
    except OSError as error:
        raise SweepError(f"cannot use {path}: {error.strerror}") from error


class TrialLock:
    """A lock on a file that whoever runs a trial holds, and that the trial's process inherits.

    Args:
        path: the file; it is there from a trial's beginning to its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None
        tell_of_forks(self)

    def after_fork(self) -> None:
        """Let a forked child have no part in the lock; the trial's own process inherits it by number."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def exists(self) -> bool:
        """Whether the trial was begun on this file system."""
        return self.path.exists()

    @property
    def is_mine(self) -> bool:
        """Whether this process has the lock."""
        return self._file is not None

    def take(self) -> bool:
        """Take the lock, unless another process has it.

        Raises:
            SweepError: the file cannot be made, or the file system has no locks.
        """
        try:
            descriptor = open_file(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            file = open(descriptor, "a", encoding="utf-8")  # noqa: SIM115 - held while the trial runs
        except OSError as error:
            raise SweepError(f"cannot write {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        except OSError as error:
            file.close()
            raise SweepError(
                f"{self.path} cannot be locked ({error.strerror}), and nothing else tells who runs a trial: put the "
                "sweep on a file system with locks"
            ) from error
        self._file = file
        return True

    def is_taken(self) -> bool:
        """Whether another process has the lock.

        Raises:
            SweepError: it is no file, or cannot be read.
        """
        return is_held(self.path)

    def fileno(self) -> int:
        """The descriptor for a child process to inherit."""
        assert self._file is not None, "only a lock that was taken can be inherited"
        return self._file.fileno()

    def give_back(self, *, over: bool) -> None:
        """Let the lock go.

        Args:
            over: whether the trial has ended for good, so that nobody will ask for the lock again.
        """
        if over:
            self.path.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()
            self._file = None


class Heartbeat:
    """Calls a function every minute from a thread of its own, while it is entered as a context manager.

    Args:
        beat: what is called.
        failures: what it may raise without harm, because it is called again.
    """

    def __init__(self, beat: Callable[[], None], failures: tuple[type[Exception], ...]) -> None:
        self._beat = beat
        self._failures = failures
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweep-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with suppress(*self._failures):
                self._beat()
