"""Processes and threads that live as long as the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError

Startable = threading.Thread | BaseProcess


class StartProcOrThread(Callback):
    """Starts processes or threads before the first step and ends them after the last.

    A process is terminated. A thread cannot be: `stop` has to tell it to end, and it is waited for if there is a
    `stop`.

    Args:
        startable: `multiprocessing.Process` or `threading.Thread` objects, or one of them, not started yet.
        stop: called after the last step, before processes are terminated and threads waited for.
        stop_at_last: whether they are ended with the run.

    Raises:
        CallbackError: something in the list is neither.
    """

    def __init__(
        self,
        startable: Startable | Sequence[Startable],
        *,
        stop: Callable[[], Any] | None = None,
        stop_at_last: bool = True,
    ) -> None:
        self._all = [startable] if isinstance(startable, (threading.Thread, BaseProcess)) else list(startable)
        for one in self._all:
            if not isinstance(one, (threading.Thread, BaseProcess)):
                raise CallbackError(f"StartProcOrThread: neither a process nor a thread: {one!r}")
        self._stop = stop
        self._stop_at_last = stop_at_last
        self._started: list[Startable] = []

    def before_train(self) -> None:
        for one in self._all:
            one.start()
            self._started.append(one)

    def after_train(self) -> None:
        started, self._started = self._started, []
        if not self._stop_at_last:
            return
        try:
            if self._stop is not None:
                self._stop()
        finally:
            for one in started:
                if isinstance(one, BaseProcess):
                    one.terminate()
                    one.join()
                elif self._stop is not None:
                    one.join()
