"""Ending a run when its loss or gradients stop being numbers."""

from __future__ import annotations

from prototrain.callbacks.base import Callback


class StopOnNaN(Callback):
    """Ends the run with an error at the very step whose loss or gradient is NaN or infinite.

    In a tower trainer the test is part of the compiled step and the bad update is not applied, so the last whole step
    can be saved. In a plain-Python trainer every scalar that `run_step` returns is tested.
    """

    chief_only = False  # all workers must do the same updates

    def setup(self) -> None:
        self.trainer.check_finite = True
