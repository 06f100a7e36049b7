"""Waiting: messages for operations that take longer than two seconds, and waits that signals interrupt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

PATIENCE_SECONDS = 2.0
_Result = TypeVar("_Result")
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


def patiently(work: Callable[[], _Result], *, check: Callable[[], object] = lambda: None) -> _Result:
    """Do something in another thread, so that signals are handled meanwhile.

    Args:
        work: what to do.
        check: called every now and then; what it raises ends the wait, and the work is left to itself.

    Returns:
        what `work` returned; what it raised is raised.
    """
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, name="wait", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # some systems hear of a signal only in between
        check()
    if "error" in outcome:
        raise outcome["error"]
    result: _Result = outcome["result"]
    return result
