"""SIGQUIT shows what all threads of a process are doing, instead of ending it."""

from __future__ import annotations

import faulthandler
import signal

STDERR = 2


def begin_stacks(file: int = STDERR) -> bool:
    """Have SIGQUIT show the stacks of all threads, at once: also while the main thread is in a call of TensorFlow.

    Args:
        file: where to.

    Returns:
        whether it did so before.
    """
    had_stacks: bool = faulthandler.unregister(signal.SIGQUIT)  # type: ignore[func-returns-value,assignment]
    faulthandler.register(signal.SIGQUIT, file=file, all_threads=True)
    return had_stacks


def end_stacks(had_stacks: bool) -> None:
    """Have SIGQUIT do what it did before `begin_stacks`, which has returned that."""
    if had_stacks:
        faulthandler.register(signal.SIGQUIT, file=STDERR, all_threads=True)
    else:
        faulthandler.unregister(signal.SIGQUIT)
