"""A worker's process, from the side of the machine that it runs on."""

from __future__ import annotations

import json
import os
import pickle
import pty
import random
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol

PORTS = range(12000, 32000)  # below those that systems hand out by themselves
_KEPT_BYTES = 4000  # of the end of what a worker has printed
_PASSED_BYTES = 2**20  # at most of what nobody has fetched yet

Output = Literal["own", "kept", "lines", "terminal"]
"""Where a worker's output goes: to this process's own, into a file, or to whoever asks for it, to be shown or as from a
terminal."""


class Process(Protocol):
    """What a `Host` needs of a `subprocess.Popen`."""

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, signum: int, /) -> None: ...

    def kill(self) -> None: ...


StartProcess = Callable[[int, int | None, Mapping[str, str]], Process]
"""Starts a worker's process; see `new_interpreter`."""


@dataclass
class State:
    """What has become of a worker since it was last asked.

    Attributes:
        code: its exit code, or the negative number of the signal that has killed it; None while it runs.
        silent: seconds since it has given a sign of life.
        has_spoken: whether it has given one.
        is_lost: whether its machine is.
        step: its completed steps, if it has come to its first.
        shares: what the number of workers must divide, if it has come to know that.
        failure: what it has said of what it ends with, see `Supervision.fail`.
        output: what it has printed, if that is to be passed on.
        tail: the end of what it has printed, if that is kept, and it has ended.
    """

    code: int | None = None
    silent: float = 0.0
    has_spoken: bool = False
    is_lost: bool = False
    step: int | None = None
    shares: int | None = None
    failure: dict[str, Any] | None = None
    output: bytes = b""
    tail: str = ""

    @property
    def has_ended(self) -> bool:
        return self.code is not None or self.is_lost


class Host:
    """Runs one worker at a time on this machine. A worker whose host is gone saves and ends.

    Args:
        start_process: starts its process.
    """

    def __init__(self, start_process: StartProcess | None = None) -> None:
        self._state = State()
        self._start_process = start_process or new_interpreter

    def address(self) -> str:
        """An address at which other workers of this machine reach the next worker."""
        return f"127.0.0.1:{free_port()}"

    def start(self, order: Mapping[str, Any], environment: Mapping[str, str], output: Output, size: Any = None) -> None:
        """Start a worker.

        Args:
            order: see `prototrain.cluster.work`.
            environment: variables besides this process's own.
            output: where what it prints goes.
            size: rows and columns of the terminal.
        """
        self._state, self._heard, self._reader = State(), time.monotonic(), None
        self._kept, self._passed = (tempfile.TemporaryFile() if output == "kept" else None), bytearray()  # noqa: SIM115
        ours, theirs = socket.socketpair()
        stdout = None if self._kept is None else self._kept.fileno()
        reading = writing = -1
        if output in ("lines", "terminal"):
            reading, writing = pty.openpty() if output == "terminal" else os.pipe()
            if output == "terminal" and size is not None:
                termios.tcsetwinsize(writing, size)
            stdout = writing
        self._process = self._start_process(theirs.fileno(), stdout, {**os.environ, **environment})
        theirs.close()
        if writing >= 0:
            os.close(writing)
            self._reader = threading.Thread(target=self._take_output, args=(reading,), daemon=True)
            self._reader.start()
        self._line = Connection(ours.detach())
        with suppress(OSError):  # it has ended already
            self._line.send_bytes(pickle.dumps(dict(order)))
        self._listener = threading.Thread(target=self._listen, args=(self._line,), daemon=True)
        self._listener.start()

    def poll(self) -> State:
        """What has become of the worker."""
        state = self._state
        code = self._process.poll()
        if code is not None and state.code is None:
            self._listener.join(1.0)  # for its last words; a process of its own may hold the line open
            if self._reader is not None:
                self._reader.join(1.0)
            if self._kept is not None:
                state.tail = _end_of(self._kept)
            state.code = code
        state.silent = time.monotonic() - self._heard
        passed, self._passed = self._passed, bytearray()
        state.output = bytes(passed)
        return state

    def signal(self, signum: int) -> None:
        """Send the worker a signal, if it runs."""
        self._process.send_signal(signum)

    def end(self) -> None:
        """Kill the worker if it runs, and let go of it."""
        self._process.kill()
        self._process.wait()
        self._line.close()
        if self._kept is not None:
            self._kept.close()

    def _listen(self, line: Connection) -> None:
        with suppress(EOFError, OSError, ValueError):
            while True:
                said = json.loads(line.recv_bytes())
                self._heard, self._state.has_spoken = time.monotonic(), True
                for name, value in said.items():
                    if value is not None:
                        setattr(self._state, name, value)

    def _take_output(self, descriptor: int) -> None:
        with suppress(OSError):  # so a terminal ends
            while read := os.read(descriptor, 65536):
                self._passed += read
                del self._passed[:-_PASSED_BYTES]
        os.close(descriptor)


def new_interpreter(descriptor: int, stdout: int | None, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that gets its order by an open socket.

    Args:
        descriptor: the socket's.
        stdout: the descriptor for what it prints and its errors; None for those of this process.
        environment: all its variables.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "prototrain.cluster.work", str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=None if stdout is None else subprocess.STDOUT,
        env=environment,
        pass_fds=(descriptor,),
        process_group=0,  # Ctrl-C at the terminal reaches it once, by way of the supervisor
    )


def free_port() -> int:
    """A port of this machine that nobody has, as far as that can be known."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as tried, suppress(OSError):
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("", port))
            return port
    raise OSError("no port is free")


def _end_of(file: Any) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _KEPT_BYTES))
    return str(file.read().decode("utf-8", "replace"))
