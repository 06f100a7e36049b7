"""Callbacks that start shells, commands, processes and threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Callback, Priority
from prototrain.errors import CallbackError
from prototrain.system.terminal import did_you_mean, is_terminal

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

Startable = threading.Thread | BaseProcess
_COMMAND_SECONDS = 10.0


class DebugShell(Callback):
    """Opens IPython before the first step, with `trainer`, `model`, `config` and one `batch`. Ctrl-D continues."""

    def setup(self) -> None:
        if not is_terminal(sys.stdin):
            raise CallbackError("a debug shell needs a terminal to read from; leave out DebugShell (--debug)")

    def before_train(self) -> None:
        open_shell(self.trainer)


class InjectShell(Callback):
    """Opens the shell of `DebugShell` if a trigger file exists.

        InjectShell().every(seconds=5)

    Request the shell with ``touch INJECT_SHELL.tmp``. The callback deletes the file. Without a terminal it prints a
    warning.

    Args:
        file: path of the trigger file, relative to the working directory.
    """

    def __init__(self, file: str | Path = "INJECT_SHELL.tmp") -> None:
        self._file = Path(file)

    def trigger(self) -> None:
        if not self._file.exists():
            return
        self._file.unlink(missing_ok=True)
        if is_terminal(sys.stdin):
            open_shell(self.trainer)
        else:
            self.trainer.log(f"WARNING: {self._file} asks for a shell, but this run has no terminal to read from")


def open_shell(trainer: Trainer) -> None:
    """Open IPython with a trainer, its model, config and first batch as variables."""
    names: dict[str, Any] = {
        "trainer": trainer,
        "model": getattr(trainer, "model", None),
        "config": trainer.config,
        "batch": getattr(getattr(trainer, "data", None), "first_batch", None),
    }
    banner = "variables: trainer, model, config, batch; trainer.run_steps(1) trains a step, Ctrl-D continues\n"
    with trainer.stop.suspended():  # Ctrl-C interrupts the shell's command, not the run
        import IPython  # slow to import, and few runs open a shell

        IPython.embed(user_ns=names, banner1=banner, colors="neutral")


class SendMonitorData(Callback):
    """Runs a shell command with the latest values of scalars.

        SendMonitorData("curl -s -d 'loss={vld/loss}' https://example.org/runs/7", ["vld/loss"]).every(steps=100)

    A command is killed after ten seconds. Only the first failure is reported.

    Args:
        command: the command, with fields as of `str.format`, such as ``{vld/loss:.3f}``.
        names: names of the scalars, without dots. The command runs only once all of them have a value.

    Raises:
        CallbackError: the command has a field that is not in `names`, or other braces that are not doubled.
    """

    priority = Priority.WRITE

    def __init__(self, command: str, names: str | Sequence[str]) -> None:
        self.command = command
        self.names = [names] if isinstance(names, str) else list(names)
        try:
            command.format_map(dict.fromkeys(self.names, 0.0))
        except (AttributeError, IndexError, KeyError, ValueError) as error:
            raise CallbackError(
                f"SendMonitorData: a field does not fit names={self.names} ({error}); double other braces"
            ) from None
        self._has_failed = False

    def after_train(self) -> None:
        known = self.trainer.monitors.names()
        if self.trainer.outcome.state != "finished":  # it may not have come to the first measurement
            return
        for name in sorted(set(self.names) - set(known)):
            self.trainer.log(f"WARNING: SendMonitorData never ran: no scalar {name!r}{did_you_mean(name, known)}")

    def trigger(self) -> None:
        monitors = self.trainer.monitors
        if not set(self.names) <= set(monitors.names()):
            return
        command = self.command.format_map({name: monitors.latest(name) for name in self.names})
        try:
            subprocess.run(command, shell=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            if not self._has_failed:
                stderr = getattr(error, "stderr", None) or ""
                self.trainer.log(f"WARNING: SendMonitorData failed: {error} {stderr.strip()}; this is reported once")
            self._has_failed = True


class StartProcOrThread(Callback):
    """Starts processes or threads before the first step and ends them after the last.

        StartProcOrThread(threading.Thread(target=serve), stop=server.shutdown)

    Processes are terminated, and killed after the timeout. Threads must end when `stop` is called; a thread that does
    not end is reported and left running as a daemon.

    Args:
        startable: one or several `multiprocessing.Process` or `threading.Thread` objects that are not started yet.
        stop: called after the last step, before processes are terminated and threads are joined.
        timeout: the total time, in seconds, for all of them to end.

    Raises:
        CallbackError: an object is neither a process nor a thread.
    """

    def __init__(
        self,
        startable: Startable | Iterable[Startable],
        *,
        stop: Callable[[], Any] | None = None,
        timeout: float = 5.0,
    ) -> None:
        self._all: list[Startable] = list(startable) if isinstance(startable, Iterable) else [startable]
        if not all(isinstance(one, Startable) for one in self._all):
            raise CallbackError(f"StartProcOrThread takes processes and threads, not {startable!r}")
        self._stop = stop
        self._timeout = timeout

    def before_train(self) -> None:
        for one in self._all:
            if isinstance(one, threading.Thread):
                one.daemon = True
            one.start()

    def after_train(self) -> None:
        if self._stop is not None:
            self._stop()
        alive = [one for one in self._all if one.is_alive()]
        for one in alive:
            if isinstance(one, BaseProcess):
                one.terminate()
        until = time.monotonic() + self._timeout
        for one in alive:
            if isinstance(one, BaseProcess) or self._stop is not None:
                one.join(max(until - time.monotonic(), 0.0))
                if one.is_alive():
                    end = "is killed" if isinstance(one, BaseProcess) else "is left running"
                    self.trainer.log(f"StartProcOrThread: {one.name} did not end within {self._timeout:g} s and {end}")
            if isinstance(one, BaseProcess):
                one.kill()
                one.join()
