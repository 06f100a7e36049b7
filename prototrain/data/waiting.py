"""Waiting for something that may take long, without being silent or deaf."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

PATIENCE = 2.0  # seconds
_Result = TypeVar("_Result")


def patiently(work: Callable[[], _Result], announce: Callable[[str], None], what: str) -> _Result:
    """Do something in another thread, so that a signal is heard meanwhile, and say what it is if it takes long.

    Args:
        work: what to do.
        announce: called with a line of text after `PATIENCE`.
        what: the line.

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
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        announce(what)
    while thread.is_alive():
        thread.join(0.1)  # some systems hear of a signal only in between
    if "error" in outcome:
        raise outcome["error"]
    result: _Result = outcome["result"]
    return result
