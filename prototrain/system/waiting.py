"""Prints a message when an operation takes longer than two seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

PATIENCE_SECONDS = 2.0
_open = threading.local()  # the operations of this thread, the outermost first


class Timer(Protocol):
    """The interface of `threading.Timer`."""

    daemon: bool

    def start(self) -> None: ...

    def cancel(self) -> None: ...


@contextmanager
def announcing(
    what: str,
    announce: Callable[[str], object] = print,
    *,
    timer: Callable[[float, Callable[[], object]], Timer] = threading.Timer,
) -> Iterator[None]:
    """Print what is being done, if it takes longer than `PATIENCE_SECONDS`.

    Of nested operations only the innermost is printed.

    Args:
        what: such as "restoring the checkpoint of step 100".
        announce: called with a line of text, from another thread.
        timer: makes a timer, as `threading.Timer` does.
    """
    others: list[object] = vars(_open).setdefault("others", [])
    this = object()

    begun: list[Timer] = []

    def begin() -> None:
        begun.append(timer(PATIENCE_SECONDS, speak))
        begun[-1].daemon = True
        with suppress(RuntimeError):  # the system has no thread to spare
            begun[-1].start()

    def speak() -> None:
        if others[-1:] == [this]:  # the other thread may remove it at any time
            announce(f"{what} ...")
        elif this in others:
            begin()

    others.append(this)
    begin()
    try:
        yield
    finally:
        others.remove(this)
        begun[-1].cancel()
