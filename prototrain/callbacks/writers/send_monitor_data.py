"""Scalars for a program of the user's own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from prototrain.callbacks.base import Callback, Priority
from prototrain.errors import CallbackError


class SendMonitorData(Callback):
    """Runs a shell command with the newest values of scalars in it, whenever triggered. A failure is reported once.

        SendMonitorData("curl -s -d 'loss={vld/loss}' https://example.org/runs/7", ["vld/loss"])

    Args:
        command: its ``{name}`` fields are replaced by the values; ``{{`` and ``}}`` stand for braces.
        names: of the scalars; the command is not run before all of them have a value.
        timeout: seconds after which the command is given up.

    Raises:
        CallbackError: the command has a field that is not among the names.
    """

    priority = Priority.WRITE

    def __init__(self, command: str, names: str | Sequence[str], *, timeout: float = 10.0) -> None:
        self.command = command
        self.names = [names] if isinstance(names, str) else list(names)
        self._timeout = timeout
        self._reported = False
        try:
            command.format(**dict.fromkeys(self.names, 0.0))
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise CallbackError(f"SendMonitorData: {command!r} does not fit the names {self.names}: {error}") from error

    def setup(self) -> None:
        self._reported = False

    def trigger(self) -> None:
        monitors = self.trainer.monitors
        if not set(self.names) <= set(monitors.names()):
            return
        command = self.command.format(**{name: monitors.latest(name) for name in self.names})
        problem = ""
        try:
            done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=self._timeout)
            if done.returncode:
                problem = f"exit code {done.returncode}: {done.stderr.strip()}"
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem and not self._reported:
            self._reported = True
            self.trainer.log(f"WARNING: SendMonitorData failed: {problem}; this is reported once")
