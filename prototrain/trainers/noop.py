"""A trainer that trains nothing."""

from __future__ import annotations

from prototrain.trainers.base import Trainer


class NoOpTrainer(Trainer):
    """Runs the callbacks only: to try them out, or for work that is wholly done in callbacks."""

    def run_step(self) -> None:
        return None
