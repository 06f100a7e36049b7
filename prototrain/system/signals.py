"""Asking a run to stop: from a signal, from another thread, promptly and without breaking anything.

A Python signal handler runs only between bytecodes, so a compiled call of many steps would delay it until the call
returns, and raising from it could tear a TensorFlow trace apart. `StopRequest` therefore only records the request. The
byte that the interpreter writes to the wakeup descriptor at once reaches a thread, which tells listeners (a compiled
trainer sets the variable that its loop reads), and the training loop raises at the end of the step.

A forked child has none of this: what it is sent is meant for it alone.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from prototrain.system.forks import tell_of_forks

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Turns Ctrl-C and SIGTERM into one flag while it is entered as a context manager.

    The first signal asks the run to stop after its step; the second says what is being waited for; the third leaves at
    once (in an interactive session by KeyboardInterrupt, elsewhere by ending the process). Off the main thread no
    handlers are installed, and only `request` sets the flag.

    Args:
        announce: called with one line of text for the user.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.signum: int | None = None
        self.stage = "the current step"
        self.listeners: list[Callable[[bool], None]] = []
        self._announce = announce
        self._count = 0
        self._old_handlers: dict[int, Any] = {}
        self._old_wakeup = -1
        self._receiver: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._thread: threading.Thread | None = None
        tell_of_forks(self)

    def __enter__(self) -> StopRequest:
        self.signum, self._count, self.stage = None, 0, "the current step"
        self._tell(False)
        if threading.current_thread() is threading.main_thread():
            self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._receiver is None or self._sender is None or self._thread is None:
            return
        self._give_back()
        signal.set_wakeup_fd(self._old_wakeup)
        # To close it would not do: the thread would wait until every copy of it is closed, in children as well.
        self._sender.shutdown(socket.SHUT_WR)
        self._thread.join()
        self._sender.close()
        self._receiver.close()
        self._receiver = self._sender = self._thread = None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Give the signals back to whoever had them before, for as long as a user types in the middle of a run."""
        listening = self._receiver is not None
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            if listening:
                self._listen()

    def after_fork(self) -> None:
        """Leave signals that this child gets to whoever had them before the run, and the run's sockets alone."""
        if self._receiver is None or self._sender is None:
            return
        self._give_back()
        signal.set_wakeup_fd(-1)  # the one from before is the parent's as well
        self._sender.close()
        self._receiver.close()
        self._receiver = self._sender = self._thread = None

    @contextmanager
    def telling(self, listener: Callable[[bool], None]) -> Iterator[None]:
        """Call `listener` with True when a stop is requested, and with False when a run begins, for a while."""
        self.listeners.append(listener)
        try:
            yield
        finally:
            self.listeners.remove(listener)

    def request(self, signum: int) -> None:
        """Ask the run to stop after its step, as if `signum` had arrived."""
        if self.signum is None:
            self.signum = signum
            self._tell(True)

    def check(self) -> None:
        """Raise what the signal stands for, if one has arrived. Called where stopping leaves everything whole.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after SIGTERM, with exit code 143.
        """
        if self.signum == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signum is not None:
            raise SystemExit(128 + self.signum)

    def _tell(self, stop: bool) -> None:
        for listener in self.listeners:
            listener(stop)

    def _give_back(self) -> None:
        for signum, handler in self._old_handlers.items():
            if handler is not None:  # one that was not set from Python cannot be set from Python
                signal.signal(signum, handler)

    def _listen(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._old_handlers = {signum: signal.getsignal(signum) for signum in _SIGNALS}
        self._old_wakeup = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._wait, args=(self._receiver,), name="stop-request", daemon=True)
        self._thread.start()
        for signum in _SIGNALS:
            signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        # The thread usually comes first; this makes the flag certain once the main thread runs Python again.
        self.request(signum)
        if self._count > 2 and _interactive():
            raise KeyboardInterrupt

    def _wait(self, receiver: socket.socket) -> None:
        while received := receiver.recv(64):
            for signum in received:
                if signum in _SIGNALS:
                    self._on_signal(signum)

    def _on_signal(self, signum: int) -> None:
        self._count += 1
        name = signal.Signals(signum).name
        if self._count == 1:
            self.request(signum)
            self._announce(f"{name}: stopping after this step and saving; twice more leaves at once")
        elif self._count == 2:
            self._announce(f"{name}: still waiting for {self.stage}; once more leaves at once, without saving")
        elif not _interactive():
            os._exit(128 + signum)


class LeavingAtOnce(StopRequest):
    """Ends the process at the first signal while it is entered, for waiting where there is nothing to be saved.

    Inside of TensorFlow, such as until other processes have connected, no handler of Python's is called. A kernel of a
    notebook is left to its own handlers.
    """

    def __init__(self) -> None:
        super().__init__(lambda text: None)

    def __enter__(self) -> LeavingAtOnce:
        if not _interactive():
            super().__enter__()
        return self

    def _on_signal(self, signum: int) -> None:
        os._exit(128 + signum)


def _interactive() -> bool:
    return hasattr(sys, "ps1") or in_notebook()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; only to have imported one is not enough."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")
