"""Forked children: they let go of signal handlers, locks and sockets of the run.

A fork copies a process with its open files and handlers, but only one of its threads. A child of `multiprocessing` or
`os.fork` is not part of the run.
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
    """An object that a forked child must let go of."""

    def after_fork(self) -> None:
        """Let go in the child, without a change to the parent's. Called before anything else runs there."""


_told: list[weakref.ref[Forkable]] = []
_mask = threading.local()
# The signals of a run, without SIGINT: its KeyboardInterrupt would be raised, and lost, in `_before`.
_HELD = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1, signal.SIGQUIT)


def tell_of_forks(one: Forkable) -> None:
    """Call `after_fork` in every child that is forked from now on, as long as the object exists.

    The last registered object comes first.
    """
    _told[:] = [told for told in _told if told() not in (None, one)]
    _told.append(weakref.ref(one))


def end_child(error: BaseException) -> NoReturn:
    """End a forked child that leaves the run by an error, with the exit code of the error.

    No other code runs: TensorFlow would wait for threads that the child does not have.
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
    # A signal to a child that has just begun must wait for `after_fork`.
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
