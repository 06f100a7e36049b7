"""A word about what takes long, so that nobody has to guess whether anything happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

PATIENCE_SECONDS = 2.0
_open = threading.local()  # what this thread has begun to do


class Timer(Protocol):
    """What `threading.Timer` is: calls a function after a time, unless it is cancelled."""

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
    """Say what is being done, if it takes longer than a user waits without wondering.

    Of several that are within each other, the innermost says it: it knows best.

    Args:
        what: such as "restoring the checkpoint of step 100".
        announce: called with a line of text, from a thread of its own.
        timer: makes what calls a function after so many seconds.
    """
    others: list[object] = vars(_open).setdefault("others", [])
    this = object()

    begun: list[Timer] = []

    def begin() -> None:
        begun.append(timer(PATIENCE_SECONDS, speak))
        begun[-1].daemon = True
        with suppress(RuntimeError):  # a system without a thread to spare: then nothing is said
            begun[-1].start()

    def speak() -> None:
        if others[-1:] == [this]:  # the other thread may take it away at any time
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
