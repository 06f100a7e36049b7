"""Processes that find TensorFlow imported, which takes seconds for each of them: a server imports it once, and forks.

What is imported there must not have started TensorFlow's devices, which do not outlive a fork. The server ends with the
process that has started it; those that it has forked do not.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import psutil

from prototrain.system.quiet import import_tensorflow

MODULES = ("tensorflow", "keras", "prototrain.launch", "prototrain.trainers.multi_worker")
_HIGH = 200  # descriptors above those that anybody has a number of
_MOST = 16  # descriptors at once


class Preloaded:
    """Starts processes; the server is started with the first one.

    Args:
        modules: what they find imported.
    """

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        self._modules = modules
        self._line: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(
        self,
        function: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: int | None = None,
        descriptors: Sequence[int] = (),
    ) -> Started:
        """Start a process in a process group of its own, without standard input.

        Args:
            function: ``module:name`` of what it calls; what that returns is the exit code.
            arguments: of the program, as the function finds them in `sys.argv`.
            environment: all its variables.
            stdout: the descriptor for its output and its errors; None for those of this process.
            descriptors: that it has under the same numbers as this process.

        Raises:
            OSError: the server cannot be started, or is gone.
        """
        if self._line is None:
            self._line = self._start_server()
        order = {
            "function": function,
            "arguments": list(arguments),
            "environment": dict(environment),
            "directory": os.getcwd(),
            "descriptors": list(descriptors),
        }
        ours, theirs = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        with tempfile.TemporaryFile() as file:  # of any length
            file.write(json.dumps(order).encode())
            file.flush()
            outputs = (1, 2) if stdout is None else (stdout, stdout)
            try:
                socket.send_fds(self._line, [b"!"], [file.fileno(), theirs, nothing, *outputs, *descriptors])
            finally:
                os.close(theirs)
                os.close(nothing)
        return Started(ours)

    def close(self) -> None:
        """End the server; the processes go on."""
        if self._line is not None and self._server is not None:
            self._line.close()
            self._server.wait()
            self._line = self._server = None

    def _start_server(self) -> socket.socket:
        line, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "prototrain.system.preloaded", str(theirs.fileno()), *self._modules],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        return line


class Started:
    """A process that a server has forked, to be used like a `subprocess.Popen`.

    Args:
        status: a descriptor at which its number can be read, and its exit code once it has ended.
    """

    def __init__(self, status: int) -> None:
        self.returncode: int | None = None
        self._status = status
        self._said = b""

    @property
    def pid(self) -> int:
        """Its number; waits until it is there."""
        while b"\n" not in self._said and self.returncode is None:
            self._read(None)
        return int(self._said.split(b"\n")[0] or 0)

    def poll(self) -> int | None:
        """Its exit code, the negative number of the signal that has killed it, or None while it runs."""
        self._read(0)
        return self.returncode

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        while self.returncode is None:
            self._read(0.5)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def _read(self, seconds: float | None) -> None:
        if self.returncode is not None or not select.select([self._status], [], [], seconds)[0]:
            return
        read = os.read(self._status, 100)
        self._said += read
        pid, _, code = self._said.partition(b"\n")
        if code.endswith(b"\n"):
            self.returncode = int(code)
        elif not read and not (pid and psutil.pid_exists(int(pid))):
            self.returncode = -signal.SIGKILL  # with the server, which would have known more
        if self.returncode is not None:
            os.close(self._status)


# -- the server -------------------------------------------------------------------------------------------------------


class _Order(NamedTuple):
    function: str
    arguments: list[str]


def serve(line: socket.socket, modules: Sequence[str]) -> _Order:
    """Fork a process for each order; only these come back from here, each with its own."""
    if "tensorflow" in modules:
        import_tensorflow()
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is shared by all is not looked through, and so not copied, by each of them
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    children: dict[int, int] = {}  # where to say what has become of each
    while True:
        ready, _, _ = select.select([line.fileno(), woken], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 1000)
        _reap(children)
        if line.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(line, 1, _MOST)
        if not message:
            os._exit(0)
        order_file, status, *own = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (woken, waking, line.detach(), status, *children.values()):
                os.close(descriptor)
            return _become(order_file, own)
        for descriptor in (order_file, *own):
            os.close(descriptor)
        children[pid] = status
        _tell(status, pid)


def _reap(children: dict[int, int]) -> None:
    while children:
        pid, how = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        status = children.pop(pid)
        _tell(status, os.waitstatus_to_exitcode(how))
        os.close(status)


def _tell(status: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody asks any more
        os.write(status, f"{number}\n".encode())


def _become(order_file: int, descriptors: list[int]) -> _Order:
    """Be the process of an order."""
    os.setpgid(0, 0)
    with open(order_file, "rb") as file:
        file.seek(0)
        order = json.loads(file.read())
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(high, [0, 1, 2, *order["descriptors"]], strict=True):
        os.dup2(descriptor, number, inheritable=number < 3)
        os.close(descriptor)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[0] = order["directory"]  # as behind `python -m`
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(random.getrandbits(32))  # else each process would draw the same
    return _Order(order["function"], order["arguments"])


def main() -> NoReturn:
    """Serve, and then, in what was forked, do what was ordered."""
    order = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    module, _, name = order.function.partition(":")
    found = importlib.import_module(module)
    sys.argv = [getattr(found, "__file__", None) or module, *order.arguments]
    function: Callable[[], Any] = getattr(found, name)
    code = 1
    try:
        code = function() or 0
    except SystemExit as error:
        code = _code_of(error)
    except BaseException:
        traceback.print_exc()
    finally:
        # As `multiprocessing` ends what it has forked: to take all modules apart would take longer than many a program.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    # The module itself, so that there is one of each thing in it.
    from prototrain.system import preloaded

    preloaded.main()
