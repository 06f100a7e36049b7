"""Processes and threads that live as long as the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError

Startable = threading.Thread | BaseProcess


class StartProcOrThread(Callback):
    """Starts processes or threads before the first step and ends them after the last.

    A process is terminated, and killed if that does not end it. A thread cannot be terminated: `stop` has to tell it to
    end. A thread that does not end is reported and left as a daemon, with which Python can exit.

    Args:
        startable: `multiprocessing.Process` or `threading.Thread` objects, or one of them, not started yet.
        stop: called after the last step, before processes are terminated and threads waited for.
        stop_at_last: whether they are ended with the run.
        timeout: the seconds that all of them together have to end.
        clock: returns the time in seconds.

    Raises:
        CallbackError: an object in the list is neither a process nor a thread.
    """

    def __init__(
        self,
        startable: Startable | Sequence[Startable],
        *,
        stop: Callable[[], Any] | None = None,
        stop_at_last: bool = True,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._all = [startable] if isinstance(startable, (threading.Thread, BaseProcess)) else list(startable)
        for one in self._all:
            if not isinstance(one, (threading.Thread, BaseProcess)):
                raise CallbackError(f"StartProcOrThread: neither a process nor a thread: {one!r}")
        self._stop = stop
        self._stop_at_last = stop_at_last
        self._timeout = timeout
        self._clock = clock
        self._started: list[Startable] = []

    def setup(self) -> None:
        for one in self._all:
            if (one.ident if isinstance(one, threading.Thread) else one.pid) is not None:
                raise CallbackError(
                    f"StartProcOrThread: {one.name} was started before, which is possible once; make a new one"
                )

    def before_train(self) -> None:
        for one in self._all:
            if isinstance(one, threading.Thread) and self._stop_at_last:
                one.daemon = True
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
            self._end(started)

    def _end(self, started: Sequence[Startable]) -> None:
        processes = [one for one in started if isinstance(one, BaseProcess)]
        threads = [one for one in started if isinstance(one, threading.Thread) and self._stop is not None]
        for process in processes:
            process.terminate()
        until = self._clock() + self._timeout
        everything: list[Startable] = [*processes, *threads]
        for one in everything:
            one.join(max(until - self._clock(), 0.0))
        for process in processes:
            if process.is_alive():
                self.trainer.log(f"StartProcOrThread: {process.name} did not end when it was told to, and is killed")
                process.kill()
                process.join()
        for thread in threads:
            if thread.is_alive():
                self.trainer.log(f"StartProcOrThread: {thread.name} has not ended, and is left running")
