"""Prints a message when an operation takes longer than two seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer

PATIENCE_SECONDS = 2.0


@contextmanager
def announcing(what: str, announce: Callable[[str], object] = print) -> Iterator[None]:
    """Print what is being done, if it takes longer than `PATIENCE_SECONDS`.

    Args:
        what: such as "restoring the checkpoint of step 100".
        announce: called with a line of text, from another thread.
    """
    timer = Timer(PATIENCE_SECONDS, announce, [f"{what} ..."])
    timer.daemon = True
    with suppress(RuntimeError):  # the system has no thread to spare
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
