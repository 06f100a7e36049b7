"""A shell in the middle of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Callback, Priority
from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class DebugShell(Callback):
    """Opens IPython before the first step, with `trainer`, `model`, `config` and one `batch` at hand.

    Leaving the shell (Ctrl-D) continues the run, whatever was raised in it.
    """

    priority = Priority.EVALUATE

    def setup(self) -> None:
        if not sys.stdin.isatty():
            raise CallbackError("a debug shell needs a terminal to read from; leave out DebugShell (--debug)")

    def before_train(self) -> None:
        open_shell(self.trainer)


def open_shell(trainer: Trainer) -> None:
    """Open IPython with a trainer and what belongs to it at hand."""
    names: dict[str, Any] = {
        "trainer": trainer,
        "model": getattr(trainer, "model", None),
        "config": trainer.config,
        "batch": getattr(getattr(trainer, "data", None), "first_batch", None),
    }
    banner = "trainer, model, config, batch are at hand; trainer.run_steps(1) trains a step, Ctrl-D continues\n"
    with trainer.stop.suspended():  # Ctrl-C is to interrupt what was typed, not the run
        import IPython  # takes a second, and few runs open a shell

        IPython.embed(user_ns=names, banner1=banner, colors="neutral")


class InjectShell(Callback):
    """Opens IPython, with `trainer`, `model`, `config` and one `batch` at hand, when a file exists as it is
    triggered.

    ``touch INJECT_SHELL.tmp`` asks for it; the file is deleted. ``InjectShell().every(seconds=5)`` looks often at no
    cost. Without a terminal to read from, it prints a line and the run continues.

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
