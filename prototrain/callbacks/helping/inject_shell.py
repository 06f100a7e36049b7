"""A shell in the middle of a run, when asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from prototrain.callbacks.base import Callback, Priority
from prototrain.callbacks.helping.debug_shell import open_shell

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class InjectShell(Callback):
    """Opens IPython, with `trainer`, `model`, `config` and one `batch` at hand, when a file exists as it is
    triggered.

    ``touch INJECT_SHELL.tmp`` asks for it; the file is deleted. ``InjectShell().every(seconds=5)`` looks often at no
    cost. Without a terminal to read from, a line says so and the run goes on.

    Args:
        file: the file, seen from the directory that the run was started in.
        shell: called with the trainer; opens the shell.
    """

    priority = Priority.EVALUATE

    def __init__(self, file: str | Path = "INJECT_SHELL.tmp", *, shell: Callable[[Trainer], None] = open_shell) -> None:
        self._file = Path(file)
        self._shell = shell

    def trigger(self) -> None:
        if not self._file.exists():
            return
        self._file.unlink(missing_ok=True)
        if sys.stdin.isatty():
            self._shell(self.trainer)
        else:
            self.trainer.log(f"WARNING: {self._file} asks for a shell, but this run has no terminal to read from")
