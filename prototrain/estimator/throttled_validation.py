"""Evaluating along with a training, not more often than an `EvalSpec` allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from prototrain.callbacks import Validation
from prototrain.estimator.specs import EvalSpec
from prototrain.estimator.trainers import BuiltProgram


class ThrottledValidation(Validation):
    """Evaluates with the weights of the run, at most as often as an `EvalSpec` allows, and at the end.

    Args:
        built: evaluates.
        spec: how much, and how often.

    Attributes:
        measured: the last outcome.
    """

    def __init__(self, built: BuiltProgram, spec: EvalSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._prefix = prefix(spec.name)
        super().__init__(prefix=self._prefix, evaluate=self._measure)
        self.measured: dict[str, Any] | None = None
        self._built, self._spec, self._clock = built, spec, clock
        self._not_before = 0.0

    def before_train(self) -> None:
        self._not_before = self._clock() + self._spec.start_delay_secs

    def trigger(self) -> None:
        if self._clock() >= self._not_before or self.trainer.global_step >= self.trainer.total_steps:
            super().trigger()
            self._not_before = self._clock() + self._spec.throttle_secs

    def measured_at_present(self) -> dict[str, Any] | None:
        """What was measured at the present step; None if there was no evaluation.

        In a run that was killed before all callbacks of a step had run, it is what the checkpoint has of it.
        """
        step, start = self.trainer.global_step, f"{self._prefix}/"
        if self.measured is not None and self.measured["global_step"] == step:
            return self.measured
        found = {}
        for name in self.trainer.monitors.names():
            if name.startswith(start) and (pairs := self.trainer.monitors.history(name))[-1][0] == step:
                found[name.removeprefix(start)] = pairs[-1][1]
        return {**found, "global_step": step} if found else None

    def _measure(self, dataset: str, batches: int) -> dict[str, float] | None:
        self._built.take_over(self.trainer)
        self.measured = self._built.measure(self._spec.steps)
        return None if self.measured is None else scalars(self.measured)


def prefix(name: str | None) -> str:
    """What the scalars of an evaluation start with: "eval", or "eval_<name>"."""
    return "eval" if name is None else f"eval_{name}"


def scalars(measured: Mapping[str, Any]) -> dict[str, float]:
    """The single numbers among what was measured, by name."""
    return {name: value for name, value in measured.items() if isinstance(value, float)}
