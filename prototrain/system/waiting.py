"""Messages for operations that take longer than two seconds, and waits that signals can interrupt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread, Timer
from typing import TypeVar

PATIENCE_SECONDS = 2.0
_Result = TypeVar("_Result")


@contextmanager
def announcing(what: str, announce: Callable[[str], object] = print) -> Iterator[None]:
    """Context manager that prints a message if an operation takes longer than `PATIENCE_SECONDS`.

    Args:
        what: the operation, such as "building the model".
        announce: called with a line of text, from another thread.
    """
    timer = Timer(PATIENCE_SECONDS, announce, [f"{what} ..."])
    timer.daemon = True
    with suppress(RuntimeError):  # the system cannot start another thread
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def interruptibly(work: Callable[[], _Result], *, check: Callable[[], object] = lambda: None) -> _Result:
    """Call a function in another thread, so that signals are handled during the call, and return its result.

    Args:
        work: the function.
        check: called ten times a second. If it raises an error, the wait ends with this error, and `work` continues
            in its thread.
    """
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="wait", daemon=True).start()
    while not future.done():
        with suppress(TimeoutError):  # some systems deliver a signal only between two waits
            future.exception(timeout=0.1)
        check()
    return future.result()
