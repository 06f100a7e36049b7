"""A shell in the middle of a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Callback, Priority
from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class DebugShell(Callback):
    """Opens IPython before the first step, with `trainer`, `model`, `config` and one `batch` at hand.

    Leaving the shell (Ctrl-D) goes on with the run, whatever was raised in it.
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
    banner = "trainer, model, config, batch are at hand; trainer.run_steps(1) trains a step, Ctrl-D goes on\n"
    with trainer.stop.suspended():  # Ctrl-C is to interrupt what was typed, not the run
        import IPython  # takes a second, and few runs open a shell

        IPython.embed(user_ns=names, banner1=banner, colors="neutral")
