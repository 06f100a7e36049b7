"""Signals that ask a run to stop, to save, or to show its threads.

A Python signal handler runs only between bytecodes, so a compiled call of many steps would delay it until the call
returns, and an exception raised from it could tear a TensorFlow trace apart. `StopRequest` therefore only sets a flag.
The byte that the interpreter writes to the wakeup descriptor reaches a thread at once; the thread tells listeners (a
compiled trainer sets the variable that its loop reads), and the training loop stops, or saves, at the end of the step.

SIGINT, SIGTERM, SIGHUP (a closed terminal) and SIGXCPU (a limit of processor time) stop a run, SIGUSR1 makes it save
and continue, and SIGQUIT prints the stacks of all threads. A forked child inherits none of this.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from prototrain.system.terminal import is_interactive

# -- forked children ---------------------------------------------------------------------------------------------------

_told: list[weakref.ref[Any]] = []
_mask = threading.local()
# The signals of a run, without SIGINT: its KeyboardInterrupt would be raised, and lost, in `_before`.
_HELD = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1)


def tell_of_forks(one: Any) -> None:
    """Call `one.after_fork()` first in every child that is forked from now on; the last registered object comes first.

    The method releases what the child must not have, without a change to the parent's.
    """
    _told[:] = [told for told in _told if told() not in (None, one)]
    _told.append(weakref.ref(one))


def end_child() -> NoReturn:
    """End a forked child that leaves the run by an error, before it touches the run of its parent."""
    error = sys.exception()
    traceback.print_exc()
    sys.stdout.flush()
    os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


def _before() -> None:
    # A signal to a child that has just begun must wait for `after_fork`.
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def _after() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _after_in_child() -> None:
    try:
        for told in reversed(_told):
            if (one := told()) is not None:
                one.after_fork()
    finally:
        _after()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)


# -- signals -----------------------------------------------------------------------------------------------------------

_FROM_USER = (signal.SIGINT, signal.SIGTERM)
_FROM_SYSTEM = (signal.SIGHUP, signal.SIGXCPU)  # sent by the system, and more than once
_STOPS = (*_FROM_USER, *_FROM_SYSTEM)
_SAVE = signal.SIGUSR1
_STEP = "the current step"
_STDERR = 2
AFTER_STEP = "after this step and saving"


class StopRequest:
    """Turns signals into flags while it is entered: one to stop, one to save and continue.

    The first signal asks the run to stop after its step. The second says what the run is waiting for, and interrupts
    it if it is a callback. The third leaves at once: by KeyboardInterrupt in an interactive session, else by ending
    the process. SIGHUP and SIGXCPU count as a first signal only; where they are ignored, as under ``nohup``, they stay
    ignored. Off the main thread no handlers are installed, and only `request` sets the flag.

    Args:
        announce: called with one line of text for the user.
        saves: whether the owner calls `take_save`.

    Attributes:
        signum: the signal that asked for a stop, or None.
        stage: what a stop waits for.
    """

    def __init__(self, announce: Callable[[str], None], *, saves: bool = True) -> None:
        self.announce = announce
        self._saves = saves
        self._listeners: list[Callable[[bool], None]] = []
        self._old_handlers: dict[int, Any] = {}
        self._old_wakeup = -1
        self._sockets: tuple[socket.socket, socket.socket] | None = None  # receiver, sender
        self._thread: threading.Thread | None = None
        self._reset()

    def _reset(self) -> None:
        self.signum: int | None = None
        self.stage = _STEP
        self._when: str | None = None  # when a stop takes effect, if not after `stage`
        self._interruptible = False  # whether a second signal interrupts what runs now
        self._announced = ""
        self._received = self._handled = 0  # stop signals, in the thread and in the main thread
        self._save_asked = False

    def __enter__(self) -> StopRequest:
        self._reset()
        self._tell(False)
        if threading.current_thread() is threading.main_thread():
            self._listen()
        return self

    def __exit__(self, *error: object) -> None:
        if self._sockets is None or self._thread is None:
            return
        receiver, sender = self._sockets
        self._restore_handlers()
        signal.set_wakeup_fd(self._old_wakeup)
        # Closing would not end the thread while a child process holds a copy of the socket.
        sender.shutdown(socket.SHUT_WR)
        self._thread.join()
        sender.close()
        receiver.close()
        self._sockets = self._thread = None

    def after_fork(self) -> None:
        """Give a forked child the handlers from before the run, and leave the run's sockets alone."""
        if self._sockets is None:
            return
        self._restore_handlers()
        signal.set_wakeup_fd(-1)  # the one from before belongs to the parent as well
        for one in self._sockets:
            one.close()
        self._sockets = self._thread = None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the handlers from before the run for a while, such as for an interactive shell."""
        is_listening = self._sockets is not None
        self.__exit__()
        try:
            yield
        finally:
            if is_listening:
                self._listen()

    @contextmanager
    def telling(self, listener: Callable[[bool], None]) -> Iterator[None]:
        """Call `listener`, in any thread, with True when a stop is requested, and with False when a run begins."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @contextmanager
    def waiting_for(self, stage: str, *, when: str | None = None, interruptible: bool = False) -> Iterator[None]:
        """Name what a stop waits for in this block, and when it takes effect, if not after `stage`.

        A second signal interrupts an `interruptible` block, as `check` does: it may wait forever for processes that got
        the same signal, such as those of a `multiprocessing.Pool`.
        """
        before = self.stage, self._when, self._interruptible
        self.stage, self._when, self._interruptible = stage, when, interruptible or self._interruptible
        try:
            yield
        finally:
            self.stage, self._when, self._interruptible = before

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Let a block complete, such as saving, also inside of an interruptible one."""
        before, self._interruptible = self._interruptible, False
        try:
            yield
        finally:
            self._interruptible = before

    def request(self, signum: int) -> None:
        """Ask the run to stop after its step, as if `signum` had arrived."""
        if self.signum is not None:
            return
        effect = self._when or (AFTER_STEP if self.stage == _STEP else f"after {self.stage}")
        more = "; twice more leaves at once" if signum in _FROM_USER else ""
        if self._interruptible:
            more = f"; once more interrupts {self.stage}"
        self._announced = effect + more  # now: the run may have moved on when the thread prints it
        self.signum = signum
        self._tell(True)

    def take_save(self) -> bool:
        """Whether the run was asked to save since the last call; the caller then saves."""
        asked, self._save_asked = self._save_asked, False
        return asked

    def check(self) -> None:
        """Raise the exception of a stop signal, if one has arrived. Called where a stop leaves everything whole.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after SIGTERM, SIGHUP or SIGXCPU, with exit code 143, 129 or 152.
        """
        if self.signum == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signum is not None:
            raise SystemExit(128 + self.signum)

    # -- the handler, in the main thread ------------------------------------------------------------------------------

    def _listen(self) -> None:
        tell_of_forks(self)  # now: the last to take the signals is the first to give them back
        receiver, sender = self._sockets = socket.socketpair()
        sender.setblocking(False)
        before = {signum: signal.getsignal(signum) for signum in (*_STOPS, _SAVE)}
        # SIGINT is taken also where a shell has started the process in the background and made it ignore that.
        self._old_handlers = {
            signum: handler
            for signum, handler in before.items()
            if signum not in _FROM_SYSTEM or handler is not signal.SIG_IGN
        }
        self._old_wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._wait, args=(receiver,), name="stop-request", daemon=True)
        self._thread.start()
        for signum in self._old_handlers:
            signal.signal(signum, self._handle)

    def _restore_handlers(self) -> None:
        for signum, handler in self._old_handlers.items():
            if handler is not None:  # a handler that was not set from Python cannot be restored from Python
                signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum == _SAVE:
            self._save_asked = True  # here, and not in the thread, which may come after the save
            before = self._old_handlers[_SAVE]
            if callable(before) and before is not _nothing_to_save:
                before(signum, frame)
            return
        self.request(signum)  # usually the thread has done so; this makes it certain
        self._handled += 1
        if self._interruptible and self._handled > 1 and signum in _FROM_USER:
            self._interruptible = False
            self.check()
        if self._received > 2 and signum in _FROM_USER and is_interactive():
            raise KeyboardInterrupt

    # -- the thread, which prints and tells listeners at once ---------------------------------------------------------

    def _wait(self, receiver: socket.socket) -> None:
        while received := receiver.recv(64):
            for signum in received:
                if signum in self._old_handlers:
                    self._on_signal(signum)

    def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if signum == _SAVE:
            if not self._saves:
                self.announce(f"{name}: there is nothing to save here; continuing")
            elif self.stage != "saving":
                self.announce(f"{name}: saving after this step")
            return
        if self._received and signum in _FROM_SYSTEM:
            return
        self._received += 1
        if self._received == 1:
            self.request(signum)
            self.announce(f"{name}: stopping {self._announced}")
        elif self._received == 2:
            action = "interrupting" if self._interruptible else "still waiting for"
            self.announce(f"{name}: {action} {self.stage}; once more leaves at once, without saving")
        elif not is_interactive():
            os._exit(128 + signum)

    def _tell(self, stop: bool) -> None:
        for listener in self._listeners:
            listener(stop)


class LeavingAtOnce(StopRequest):
    """Ends the process at the first signal, while there is nothing to save.

    Inside TensorFlow, such as until other processes have connected, Python calls no handler. A notebook's kernel keeps
    its own handlers.
    """

    def __init__(self) -> None:
        super().__init__(partial(print, flush=True), saves=False)

    def __enter__(self) -> LeavingAtOnce:
        if not is_interactive():
            super().__enter__()
        return self

    def _on_signal(self, signum: int) -> None:
        if signum in _STOPS:
            os._exit(128 + signum)
        super()._on_signal(signum)


@contextmanager
def ignore_save_signals() -> Iterator[None]:
    """Keep SIGUSR1 and SIGQUIT from ending the process in and around a run.

    SIGUSR1 prints a line where there is nothing to save. SIGQUIT prints the stacks of all threads, also during a call
    of TensorFlow. Off the main thread nothing changes.
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
