"""Signals to save, or to show what a process is doing, do not end it around a run, where there is nothing to save."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from prototrain.system.forks import tell_of_forks
from prototrain.system.stacks import STDERR, begin_stacks, end_stacks


@contextmanager
def outlasting() -> Iterator[None]:
    """Let neither SIGUSR1 nor SIGQUIT end the process around a run, where there is nothing to be saved.

    The one is answered by a line, the other by the stacks of all threads. Off the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    harmless = _Harmless()
    try:
        yield
    finally:
        harmless.after_fork()


class _Harmless:
    """What `outlasting` has taken, and gives back."""

    def __init__(self) -> None:
        self._is_over = False
        # Whoever has a handler of his own keeps it, a run around this one among them.
        self._took_save = signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        if self._took_save:
            signal.signal(signal.SIGUSR1, self._handle)
        self._stderr = _copy_of_stderr()
        self._had_stacks = begin_stacks(self._stderr or STDERR)
        tell_of_forks(self)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGUSR1) == self._handle:  # else a run has taken it, and passes it on
            with suppress(OSError):  # of a terminal that is gone; and print could be under way already
                os.write(self._stderr or STDERR, b"SIGUSR1: there is nothing to save; going on\n")

    def after_fork(self) -> None:
        if self._took_save:
            self._took_save = False
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        if self._is_over:
            return
        self._is_over = True
        end_stacks(self._had_stacks)
        if self._stderr is not None:
            os.close(self._stderr)


def _copy_of_stderr() -> int | None:
    """The error stream, also while it is put aside for the import of TensorFlow; None for a process without one."""
    try:
        return os.dup(STDERR)
    except OSError:
        return None
