"""A word about what takes long, so that nobody has to guess whether anything happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

PATIENCE_SECONDS = 2.0


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

    Args:
        what: such as "restoring the checkpoint of step 100".
        announce: called with a line of text, from a thread of its own.
        timer: makes what calls a function after so many seconds.
    """
    waiting = timer(PATIENCE_SECONDS, lambda: announce(f"{what} ..."))
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
