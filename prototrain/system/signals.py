"""Asking a run to stop, or to save: from a signal, from another thread, promptly and without breaking anything.

A Python signal handler runs only between bytecodes, so a compiled call of many steps would delay it until the call
returns, and raising from it could tear a TensorFlow trace apart. `StopRequest` therefore only records the request. The
byte that the interpreter writes to the wakeup descriptor at once reaches a thread, which tells listeners (a compiled
trainer sets the variable that its loop reads), and the training loop raises, or saves, at the end of the step.

SIGINT, SIGTERM, SIGHUP (a terminal was closed) and SIGXCPU (a limit of processor time) stop a run, SIGUSR1 has it save
and go on, and SIGQUIT shows what all threads are doing.

A forked child has none of this: what it is sent is meant for it alone.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from prototrain.system.forks import tell_of_forks
from prototrain.system.interactive import is_interactive
from prototrain.system.stacks import begin_stacks, end_stacks

_SENT = (signal.SIGINT, signal.SIGTERM)  # by somebody, who may lose patience
_SYSTEM = (signal.SIGHUP, signal.SIGXCPU)  # sends these by itself, and more than once
_STOPS = (*_SENT, *_SYSTEM)
_SAVE = signal.SIGUSR1
_STEP = "the current step"
AFTER_STEP = "after this step and saving"
GRACE_SECONDS = 10.0  # that code of the user's has after a stop was requested


class StopRequest:
    """Turns signals into flags while it is entered as a context manager: to stop, and to save and go on.

    The first signal asks the run to stop after its step, or after what it does before the first one; the second says
    what is being waited for, and ends it if it may be interrupted; the third leaves at once (in an interactive session
    by KeyboardInterrupt, elsewhere by ending the process). SIGHUP and SIGXCPU count as the first only: terminals send
    one twice, and the system the other every second. Where they are ignored, as under ``nohup``, they stay so. Off the
    main thread no handlers are installed, and only `request` sets a flag.

    Args:
        announce: called with one line of text for the user.
        saves: whether whoever owns this looks at `take_save`.

    Attributes:
        announce: as it was given.
        stage: what a stop waits for.
        patience: seconds after which a step that a stop waits for counts as stuck: the process ends without saving;
            None to wait for ever.
    """

    def __init__(self, announce: Callable[[str], None], *, saves: bool = True) -> None:
        self.signum: int | None = None
        self.stage = _STEP
        self.patience: float | None = None
        self._when: str | None = None  # a stop takes effect, if not after what it waits for
        self._effect = ""  # when it was to take effect that was requested
        self._ends_it = ""  # what the user does about that
        self.listeners: list[Callable[[bool], None]] = []
        self._pausing: list[Callable[[bool], None]] = []
        self._save_asked = self._paused = False
        self._saves = saves
        self.announce = announce
        self._count = 0
        self._old_handlers: dict[int, Any] = {}
        self._had_stacks = False
        self._old_wakeup = -1
        self._receiver: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._running: object | None = None  # stands for code that may be interrupted, while that runs
        self._overdue: object | None = None  # for that which has had its time
        self._is_held = False  # while something is done that has to come to its end
        self._handled = 0  # in the main thread
        self._is_own = False  # the next signal

    def __enter__(self) -> StopRequest:
        self.signum, self._count, self.stage, self._when, self._effect = None, 0, _STEP, None, ""
        self._running, self._overdue, self._handled, self._ends_it = None, None, 0, ""
        self._save_asked = self._paused = False
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
    def telling(self, listener: Callable[[bool], None], *, pauses: bool = False) -> Iterator[None]:
        """Call `listener` with True when a stop is requested, and with False when a run begins, for a while.

        Args:
            listener: may be called from another thread.
            pauses: call it with True also when the run is to be saved, and with False when that is done.
        """
        self.listeners.append(listener)
        if pauses:
            self._pausing.append(listener)
        try:
            yield
        finally:
            self.listeners.remove(listener)
            if pauses:
                self._pausing.remove(listener)

    @contextmanager
    def waiting_for(self, stage: str, *, when: str | None = None) -> Iterator[None]:
        """Name what a stop waits for meanwhile.

        Args:
            stage: such as "setup of Download".
            when: the stop takes effect, in words, if that is not after it.
        """
        before = self.stage, self._when
        self.stage, self._when = stage, when
        try:
            yield
        finally:
            self.stage, self._when = before

    @contextmanager
    def interrupting(self, what: str, *, when: str | None = None) -> Iterator[None]:
        """Let a second signal, or a first one after a while, end what is done meanwhile, which may wait for ever.

        So it is with what waits for other processes that have got the same signal, such as a `multiprocessing.Pool`.

        Args:
            what: is done, such as "trigger of Download".
            when: as for `waiting_for`.

        Raises:
            KeyboardInterrupt, SystemExit: as `check`, from wherever the main thread is.
        """
        before = self.stage, self._when
        self.stage, self._when, self._running = what, when, object()
        try:
            yield
        finally:
            self._running = None
            self.stage, self._when = before

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Let what is done meanwhile, such as saving, come to its end, also within `interrupting`."""
        before = self._running, self._is_held
        self._running, self._is_held = None, True
        try:
            yield
        finally:
            self._running, self._is_held = before

    def request(self, signum: int) -> None:
        """Ask the run to stop after its step, as if `signum` had arrived."""
        if self.signum is None:
            # Now: the run may be elsewhere when the user is told.
            self._effect = self._says()
            if self._running is not None:
                self._ends_it = f"; once more, or {GRACE_SECONDS:g} s, interrupts {self.stage}"
            self.signum = signum
            self._tell(True)

    def take_save(self) -> bool:
        """Whether the run was asked to save, once; whoever asks this does it."""
        if self._paused:
            self._paused = False
            self._tell_pausing(False)
            if self.signum is not None or self._paused:  # what came meanwhile was overwritten
                self._tell_pausing(True)
        asked, self._save_asked = self._save_asked, False
        return asked

    def _pause(self) -> None:
        """Have the present call end after its step."""
        self._paused = True
        self._tell_pausing(True)

    def check(self) -> None:
        """Raise what the signal stands for, if one has arrived. Called where stopping leaves everything whole.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after SIGTERM, SIGHUP or SIGXCPU, with exit code 143, 129 or 152.
        """
        if self.signum == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signum is not None:
            raise SystemExit(128 + self.signum)

    def _tell(self, stop: bool) -> None:
        for listener in self.listeners:
            listener(stop)

    def _tell_pausing(self, pause: bool) -> None:
        for listener in self._pausing:
            listener(pause)

    def _give_back(self) -> None:
        for signum, handler in self._old_handlers.items():
            if handler is not None:  # one that was not set from Python cannot be set from Python
                signal.signal(signum, handler)
        end_stacks(self._had_stacks)

    def _listen(self) -> None:
        tell_of_forks(self)  # now: whoever took the signals last gives them back first
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        before = {signum: signal.getsignal(signum) for signum in (*_STOPS, _SAVE)}
        # What is started in the background by a shell ignores SIGINT as well, which has always stopped a run.
        self._old_handlers = {
            signum: handler
            for signum, handler in before.items()
            if signum not in _SYSTEM or handler is not signal.SIG_IGN
        }
        self._old_wakeup = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._wait, args=(self._receiver,), name="stop-request", daemon=True)
        self._thread.start()
        for signum in self._old_handlers:
            signal.signal(signum, self._handle)
        self._had_stacks = begin_stacks()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum == _SAVE:
            self._save_asked = True  # here alone: the thread may be so late that it has been done, and then only pauses
            if callable(before := self._old_handlers[_SAVE]):
                before(signum, frame)
            return
        # The thread usually comes first; this makes the flag certain once the main thread runs Python again.
        self.request(signum)
        self._handled += 1
        if self._running is not None and (self._overdue is self._running or (self._handled > 1 and signum in _SENT)):
            self._running = None
            self.check()
        if self._count > 2 and signum in _SENT and is_interactive():
            raise KeyboardInterrupt

    def _after_grace(self, running: object | None, run: object) -> None:
        """End code that has had its time, unless it has ended; say of a step that it goes on."""
        if self._thread is not run or self.signum is None:
            return
        if running is not None and self._running is running:
            self.announce(f"{self.stage} has not ended for {GRACE_SECONDS:g} s; interrupting it")
            self._overdue, self._is_own = running, True
            signal.pthread_kill(threading.main_thread().ident or 0, self.signum)
        elif self._count == 1 and not self._is_held:
            limit = "" if self.patience is None or self.stage != _STEP else f", or {self.patience:g} s,"
            self.announce(
                f"{self.stage} has not ended for {GRACE_SECONDS:g} s; twice more{limit} leaves at once, without saving"
            )

    def _after_patience(self, run: object, signum: int) -> None:
        """End the process if a step is stuck, and nothing is being saved."""
        if self._thread is run and self.stage == _STEP and not self._is_held:
            self.announce(f"{self.stage} has not ended for {self.patience:g} s; leaving without saving")
            os._exit(128 + signum)

    def _wait(self, receiver: socket.socket) -> None:
        while received := receiver.recv(64):
            for signum in received:
                if signum in self._old_handlers:
                    self._on_signal(signum)

    def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if signum == _SAVE:
            self._on_save(name)
            return
        if self._is_own or (self._count and signum in _SYSTEM):
            self._is_own = False
            return
        self._count += 1
        if self._count == 1:
            self.request(signum)
            more = self._ends_it or ("; twice more leaves at once" if signum in _SENT else "")
            self.announce(f"{name}: stopping {self._effect or self._says()}{more}")
            _start_timer(GRACE_SECONDS, self._after_grace, self._running, self._thread)
            if self.patience is not None and not is_interactive():
                _start_timer(self.patience, self._after_patience, self._thread, signum)
        elif self._count == 2:
            said = f"still waiting for {self.stage}" if self._running is None else f"interrupting {self.stage}"
            self.announce(f"{name}: {said}; once more leaves at once, without saving")
        elif not is_interactive():
            os._exit(128 + signum)

    def _says(self) -> str:
        """When a stop that is requested now takes effect."""
        return self._when or (AFTER_STEP if self.stage == _STEP else f"after {self.stage}")

    def _on_save(self, name: str) -> None:
        if not self._saves:
            self.announce(f"{name}: there is nothing to save here; going on")
        elif self.stage != "saving":
            self._pause()
            self.announce(f"{name}: saving after this step")


def _start_timer(seconds: float, call: Callable[..., None], *arguments: object) -> None:
    timer = threading.Timer(seconds, call, arguments)
    timer.daemon = True
    timer.start()


class LeavingAtOnce(StopRequest):
    """Ends the process at the first signal while it is entered, for waiting where there is nothing to be saved.

    Inside of TensorFlow, such as until other processes have connected, no handler of Python's is called. A kernel of a
    notebook is left to its own handlers.
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
