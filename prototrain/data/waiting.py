"""Waiting for something that may take long, without being deaf."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def patiently(work: Callable[[], _Result], *, check: Callable[[], object] = lambda: None) -> _Result:
    """Do something in another thread, so that a signal is heard meanwhile.

    Args:
        work: what to do.
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

    thread = threading.Thread(target=run, name="wait", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # some systems hear of a signal only in between
        check()
    if "error" in outcome:
        raise outcome["error"]
    result: _Result = outcome["result"]
    return result
