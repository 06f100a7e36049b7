"""What a forked child must not inherit: signal handlers, locks on files, the places of threads that are not there.

A fork copies a process with all its open files and handlers, and with one of its threads only. A child of
`multiprocessing` or of `os.fork` is no part of the run: what holds something that belongs to the run is told of the
fork here, in the child, and lets go of it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import weakref
from typing import NoReturn, Protocol


class Forkable(Protocol):
    """Something that a forked child has to let go of."""

    def after_fork(self) -> None:
        """Let go, in the child; the parent's must stay as it is. Called before anything else runs there."""


_told: list[weakref.ref[Forkable]] = []
_mask = threading.local()
# What a run has handlers of. SIGINT is not among them, since what Python makes of that would be raised, and lost, in
# `_before`.
_HELD = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1, signal.SIGQUIT)


def tell_of_forks(one: Forkable) -> None:
    """Have `after_fork` called in every child that is forked from now on, as long as the object is there.

    Those that were named last come first; to name one again makes it the last.
    """
    _told[:] = [told for told in _told if told() not in (None, one)]
    _told.append(weakref.ref(one))


def end_child(error: BaseException) -> NoReturn:
    """End a forked child that comes out of the run, with the exit code that the error stands for.

    Neither what is around the run nor Python's own end takes place: TensorFlow would wait for threads that are not
    there.
    """
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if code is None else code if isinstance(code, int) else 1)


def _before() -> None:
    # A child that is terminated the moment it begins must not take the signal for the run's: it waits for `after_fork`.
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def _after() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _after_in_child() -> None:
    try:
        for told in reversed(_told):
            if (one := told()) is not None:
                one.after_fork()
    finally:
        _after()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
