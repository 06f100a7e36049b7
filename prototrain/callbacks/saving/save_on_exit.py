"""Saving whenever a run ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prototrain.callbacks.base import Callback, Priority, innermost

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class SaveOnExit(Callback):
    """Writes a checkpoint of the last completed step on every way out of a run: its end, a stop, a signal, an error.

    What a failed step left half-done is written aside as ``failed-<step>``, where no resume finds it.
    """

    priority = Priority.SAVE

    def __init__(self) -> None:
        self._first_step: int | None = None

    def setup(self) -> None:
        self.trainer.require_experiment("SaveOnExit")
        self._first_step = None

    def before_train(self) -> None:
        self._first_step = self.trainer.global_step

    def after_train(self) -> None:
        # Nothing to save if nothing was restored yet, or no step was completed since.
        run = self.trainer.run
        if self._first_step is None or (run.state_is_sound and self.trainer.global_step == self._first_step):
            return
        if run.directory_is_gone():
            return  # which ends the run with an error
        path = self.trainer.save()
        if run.state_is_sound:
            run.prune()
            self.trainer.log(f"saved step {self.trainer.global_step} to {path}")
            return
        self.trainer.log(f"the failed step is kept in {path} for inspection; {run.resume_point()}")


def save_ahead(trainer: Trainer) -> None:
    """Save what `SaveOnExit` would save, if it is in the list, now: the weights are about to become others."""
    is_over = trainer.callbacks.failure is None and trainer.run.state_is_sound
    if is_over and trainer.is_chief and any(isinstance(innermost(one), SaveOnExit) for one in trainer.callbacks):
        trainer.save()
