"""How long a run is."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from numbers import Integral

ENDLESS = sys.maxsize
"""The number of steps of a run that has no planned end."""


@dataclass(frozen=True)
class RunLength:
    """The length of a run; `ENDLESS` where nothing is planned.

    Attributes:
        steps_per_epoch: of one epoch.
        max_epoch: the number of epochs.
        max_steps: the number of steps.
    """

    steps_per_epoch: int = ENDLESS
    max_epoch: int = ENDLESS
    max_steps: int = ENDLESS

    @property
    def total_steps(self) -> int:
        """Where the run ends: what comes first."""
        return min(self.max_steps, self.max_epoch * self.steps_per_epoch)

    @classmethod
    def of(cls, steps_per_epoch: int | None, max_epoch: int | None, max_steps: int | None) -> RunLength:
        """The length that the arguments of `Trainer.train` say.

        Raises:
            ValueError: one of them is not a number that makes sense.
        """
        lengths = {"steps_per_epoch": steps_per_epoch, "max_epoch": max_epoch, "max_steps": max_steps}
        for name, value in lengths.items():
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < 0):
                raise ValueError(f"{name} must be a whole number and not negative, got {value!r}")
        steps_per_epoch, max_epoch, max_steps = (None if v is None else int(v) for v in lengths.values())
        if steps_per_epoch == 0:
            raise ValueError("steps_per_epoch must be at least 1")
        if max_epoch is not None and steps_per_epoch is None:
            raise ValueError("max_epoch needs steps_per_epoch: this trainer does not know how long an epoch is")
        steps = ENDLESS if max_steps is None else max_steps
        epoch = (steps or 1) if steps_per_epoch is None else steps_per_epoch
        return cls(epoch, ENDLESS if max_epoch is None else max_epoch, steps)
