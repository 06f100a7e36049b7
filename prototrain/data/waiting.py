"""Waiting for something that may take long, without being silent or deaf."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

PATIENCE = 2.0  # seconds
_Result = TypeVar("_Result")


def patiently(
    work: Callable[[], _Result],
    announce: Callable[[str], None] = lambda line: None,
    what: str = "",
    *,
    check: Callable[[], object] = lambda: None,
) -> _Result:
    """Do something in another thread, so that a signal is heard meanwhile, and say what it is if it takes long.

    Args:
        work: what to do.
        announce: called with a line of text after `PATIENCE`.
        what: the line.
        check: called every now and then; what it raises ends the wait, and nobody hears of the work any more.

    Returns:
        what `work` returned; what it raised is raised.
    """
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, name="first batch", daemon=True)
    begin, is_quiet = time.monotonic(), True
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # some systems hear of a signal only in between
        check()
        if is_quiet and thread.is_alive() and time.monotonic() - begin > PATIENCE:
            is_quiet = False
            announce(what)
    if "error" in outcome:
        raise outcome["error"]
    result: _Result = outcome["result"]
    return result
