"""Runs Python programs in forked processes in which TensorFlow is already imported, which saves five seconds each.

All programs have the hash seed of the fork server, so some tests start a new interpreter instead.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tensorflow", "keras", "tensorboard.compat.proto.event_pb2", "pytest"])


class Program:
    """A running program, with the interface of a `subprocess.Popen` whose standard error goes to its output.

    Args:
        arguments: what would stand behind ``python``: a file or ``-m`` and a module, and the program's own arguments.
        environment: its environment variables; this process's if None.
        cwd: its working directory; this process's if None.

    Attributes:
        stdout: what it prints, as a text file.
    """

    def __init__(
        self, arguments: list[str], environment: dict[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        reader, writer = _CONTEXT.Pipe(duplex=False)
        variables = dict(os.environ if environment is None else environment)
        self._process = _CONTEXT.Process(target=_run, args=(arguments, variables, cwd or Path.cwd(), writer))
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace")
        reader.close()

    @property
    def returncode(self) -> int | None:
        """Its exit code, the negative number of the signal that killed it, or None while it runs."""
        return self._process.exitcode

    def send_signal(self, signum: int) -> None:
        """Send a signal, if it still runs."""
        if self._process.exitcode is None and self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signum)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end; returns the exit code, or None when the time is over."""
        self._process.join(timeout)
        return self._process.exitcode

    def finish(self) -> tuple[int | None, str]:
        """Wait until it ends; returns its exit code and the rest of its output."""
        with self.stdout:
            said = self.stdout.read()
        return self.wait(60), said

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self._process.kill()
        self._process.join()
        self.stdout.close()


def _run(arguments: list[str], environment: dict[str, str], cwd: Path, output: Connection) -> None:
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    multiprocessing.set_start_method(None, force=True)  # as in a process that multiprocessing has not started
    os.chdir(cwd)
    # A Python interpreter also puts these first.
    sys.path[:0] = [*environment.get("PYTHONPATH", "").split(os.pathsep), str(cwd)]
    os.environ.clear()
    os.environ.update(environment)
    is_module = arguments[0] == "-m"
    sys.argv = arguments[1:] if is_module else list(arguments)
    try:
        if is_module:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not call these
