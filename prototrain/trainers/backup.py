"""A copy of a run's variables in memory, for a step that fails half-done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import tensorflow as tf

from prototrain.checkpoint.state import variables_in
from prototrain.towers import components

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

BACKUP_SECONDS = 5.0


class Backup:
    """A copy of the state from some seconds ago: a step that fails because a peer is gone may be half-done.

    Args:
        trainer: whose state is copied.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._taken = -BACKUP_SECONDS
        self._step = 0
        self._copies: list[tuple[tf.Variable, tf.Tensor]] = []

    def take(self) -> None:
        """Copy the state, unless the last copy is young."""
        if time.monotonic() - self._taken < BACKUP_SECONDS:
            return
        variables = [*variables_in(self._trainer.state), *self._trainer.callbacks.variables]
        self._copies = [(copy, tf.identity(copy)) for variable in variables for copy in components(variable)]
        self._step, self._taken = self._trainer.global_step, time.monotonic()

    def expire(self) -> None:
        """Have the state copied anew before the next step, so that nobody goes back to before a checkpoint."""
        self._taken = -BACKUP_SECONDS

    def put_back(self) -> int:
        """Give the state its copied values.

        Returns:
            the number of completed steps that they belong to.
        """
        for variable, value in self._copies:
            variable.assign(value)
        return self._step
