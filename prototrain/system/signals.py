"""Signals that make a run stop, save or print its threads, and waits that signals can interrupt.

Python runs signal handlers only between bytecodes. A compiled call of many steps would delay a handler until the call
returns, and an exception from a handler could interrupt a TensorFlow trace. `StopRequest` therefore only sets a flag.
The byte that the interpreter writes to the wakeup descriptor reaches a thread at once. The thread calls listeners (a
compiled trainer sets the variable that its loop reads), and the training loop stops or saves at the end of the step.

SIGINT, SIGTERM, SIGHUP (a closed terminal) and SIGXCPU (a CPU time limit) stop a run, SIGUSR1 makes it save and
continue, and SIGQUIT prints the stacks of all threads. A forked child inherits none of these handlers.
"""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TypeVar

from prototrain.system.terminal import is_interactive

_Result = TypeVar("_Result")

_watchers: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()  # in the order of registration
_mask = threading.local()
# SIGINT is missing: its KeyboardInterrupt would be raised, and lost, in `_before`.
_HELD = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1)


def watch_forks(watcher: Any) -> None:
    """Call `watcher.after_fork()`, which releases resources, at the start of every child process forked from now on."""
    _watchers.pop(watcher, None)
    _watchers[watcher] = None


def end_child() -> NoReturn:
    """Print the current exception and end a forked child process, so that it does not touch the run of its parent."""
    error = sys.exception()
    traceback.print_exc()
    sys.stdout.flush()
    os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


def _before() -> None:
    # Signals to a new child must wait until `after_fork` has run.
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def _after() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _after_in_child() -> None:
    try:
        for watcher in reversed(list(_watchers)):
            watcher.after_fork()
    finally:
        _after()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)


_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)
_SAVE = signal.SIGUSR1
_AGAIN_SECONDS = 1.0
_STDERR = 2


class StopRequest:
    """Context manager that turns signals into flags: one to stop, and one to save and continue.

    The first stop signal asks the run to stop after the current step. Ctrl-C (SIGINT) a second or more after it leaves
    at once: it raises KeyboardInterrupt in an interactive session and ends the process otherwise. Other signals count
    once, since programs such as `timeout` send them twice. Ignored signals stay ignored, as under ``nohup``. Outside of
    the main thread no handlers are installed, and only `request` sets the flag.

    `announce` is called with lines for the user. With `saves`, SIGUSR1 is handled, too, and the owner calls
    `pop_save_request`. `signum` is the signal that asked for a stop, or None.
    """

    def __init__(self, announce: Callable[[str], None], *, saves: bool = True) -> None:
        self.announce = announce
        self._signals = (*_STOPS, _SAVE) if saves else _STOPS
        self._listeners: list[Callable[[bool], None]] = []
        self._old_handlers: dict[int, Any] = {}
        self._old_wakeup = -1
        self._sockets: tuple[socket.socket, socket.socket] | None = None  # receiver, sender
        self._thread: threading.Thread | None = None
        self._reset()

    def _reset(self) -> None:
        self.signum: int | None = None
        self._stopped_at = math.inf  # the time of the first stop signal
        self._save_asked = False

    def __enter__(self) -> StopRequest:
        self._reset()
        self._tell(False)
        if threading.current_thread() is threading.main_thread():
            self._listen()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_listening(self._old_wakeup, self._thread)

    def after_fork(self) -> None:
        """Restore the earlier handlers in a forked child, without shutting down the parent's sockets."""
        self._stop_listening(-1, None)  # the earlier descriptor also belongs to the parent

    def _stop_listening(self, wakeup: int, thread: threading.Thread | None) -> None:
        if self._sockets is None:
            return
        for signum, handler in self._old_handlers.items():
            if handler is not None:  # Python cannot restore a handler that was not set from Python
                signal.signal(signum, handler)
        signal.set_wakeup_fd(wakeup)
        if thread is not None:  # closing the socket would not end it while a child process has a copy
            self._sockets[1].shutdown(socket.SHUT_WR)
            thread.join()
        for one in self._sockets:
            one.close()
        self._sockets = self._thread = None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Context manager that restores the earlier handlers for a block, such as an interactive shell."""
        is_listening = self._sockets is not None
        self.__exit__()
        try:
            yield
        finally:
            if is_listening:
                self._listen()

    @contextmanager
    def notifying(self, listener: Callable[[bool], None]) -> Iterator[None]:
        """Call `listener`, in any thread, with True when a stop is requested and with False when a run begins."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def request(self, signum: int) -> None:
        """Ask the run to stop after its step, as if `signum` had arrived."""
        if self.signum is None:
            self.signum = signum
            self._tell(True)

    def pop_save_request(self) -> bool:
        """Return whether a signal asked for a save since the last call, and reset this flag."""
        asked, self._save_asked = self._save_asked, False
        return asked

    def check(self) -> None:
        """Raise the exception of a stop signal, if one has arrived. Call this only where a stop is safe.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after SIGTERM, SIGHUP or SIGXCPU, with exit code 143, 129 or 152.
        """
        if self.signum == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signum is not None:
            raise SystemExit(128 + self.signum)

    def _listen(self) -> None:
        watch_forks(self)  # at this point, so that handlers are restored in reverse order
        receiver, sender = self._sockets = socket.socketpair()
        sender.setblocking(False)
        before = {signum: signal.getsignal(signum) for signum in self._signals}
        # SIGINT is handled even if it was ignored, since a shell ignores it for background processes.
        self._old_handlers = {n: old for n, old in before.items() if n == signal.SIGINT or old is not signal.SIG_IGN}
        self._old_wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._wait, args=(receiver,), name="stop-request", daemon=True)
        self._thread.start()
        for signum in self._old_handlers:
            signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        # The thread may not have run yet: it could be too late for this step, or come after the save.
        if signum == _SAVE:
            self._save_asked = True
            return
        self.request(signum)
        if signum == signal.SIGINT and is_interactive() and self._is_second():
            raise KeyboardInterrupt

    def _wait(self, receiver: socket.socket) -> None:
        while received := receiver.recv(64):
            for signum in received:
                if signum in self._old_handlers:
                    self._on_signal(signum)

    def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if signum == _SAVE:
            self.announce(f"{name}: saving after this step")
        elif self._stopped_at == math.inf:
            self._stopped_at = time.monotonic()
            self.request(signum)
            self.announce(f"{name}: stopping after this step and saving; Ctrl-C now exits at once")
        elif signum == signal.SIGINT and not is_interactive() and self._is_second():
            os._exit(128 + signum)

    def _is_second(self) -> bool:
        # Programs that pass on the Ctrl-C of their terminal deliver it twice.
        return time.monotonic() - self._stopped_at > _AGAIN_SECONDS

    def _tell(self, stop: bool) -> None:
        for listener in self._listeners:
            listener(stop)


class LeavingAtOnce(StopRequest):
    """Context manager in which the first signal ends the process, for use while there is nothing to save.

    It also works during long TensorFlow calls, such as waiting for other processes, in which Python calls no handlers.
    The kernel of a notebook keeps its own handlers.
    """

    def __init__(self) -> None:
        super().__init__(print, saves=False)

    def __enter__(self) -> LeavingAtOnce:
        if not is_interactive():
            super().__enter__()
        return self

    def _on_signal(self, signum: int) -> None:
        os._exit(128 + signum)


@contextmanager
def ignore_save_signals() -> Iterator[None]:
    """Context manager in which SIGUSR1 and SIGQUIT do not end the process. It does nothing outside of the main thread.

    SIGUSR1 prints a line if there is nothing to save. SIGQUIT prints the stacks of all threads, even during a
    TensorFlow call.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_free = signal.getsignal(_SAVE) is signal.SIG_DFL
    if is_free:
        signal.signal(_SAVE, _nothing_to_save)
    had_stacks = faulthandler.unregister(signal.SIGQUIT)  # type: ignore[func-returns-value]
    faulthandler.register(signal.SIGQUIT, file=_STDERR, all_threads=True)
    try:
        yield
    finally:
        if not had_stacks:
            faulthandler.unregister(signal.SIGQUIT)
        if is_free:
            signal.signal(_SAVE, signal.SIG_DFL)


def _nothing_to_save(signum: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(_STDERR, b"SIGUSR1: there is nothing to save; continuing\n")


def in_thread(work: Callable[[], _Result], name: str) -> Future[_Result]:
    """Call a function in a daemon thread; returns the future of its result."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def run_interruptibly(work: Callable[[], _Result], *, check: Callable[[], object] = lambda: None) -> _Result:
    """Call a function in another thread, so that signals are handled during the call, and return its result.

    `check` is called ten times a second. If it raises an error, the wait ends, and `work` continues in its thread.
    """
    future = in_thread(work, "wait")
    while not future.done():
        with suppress(TimeoutError):  # some systems deliver a signal only between two waits
            future.exception(timeout=0.1)
        check()
    return future.result()
