"""Callbacks of `train_and_evaluate` for evaluation and export."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.callbacks import Callback, Priority, Validation
from prototrain.estimator.exporters import Exporter
from prototrain.estimator.specs import EvalSpec
from prototrain.estimator.trainers import BuiltProgram

if TYPE_CHECKING:
    from prototrain.estimator.estimator import Estimator


class ThrottledValidation(Validation):
    """Evaluates the current weights at most as often as an `EvalSpec` allows, and at the end of the run.

    Args:
        built: the model that runs the evaluation.
        spec: the number of batches and the delays.
        clock: returns the time in seconds.

    Attributes:
        measured: the results of the last evaluation, or None before the first one.
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

    def _measure(self, dataset: str, batches: int) -> dict[str, float] | None:
        self._built.take_over(self.trainer)
        self.measured = self._built.measure(self._spec.steps)
        return None if self.measured is None else scalars(self.measured)


def prefix(name: str | None) -> str:
    """Return the prefix of an evaluation's scalars: "eval" or "eval_<name>"."""
    return "eval" if name is None else f"eval_{name}"


def scalars(measured: Mapping[str, Any]) -> dict[str, float]:
    """Return the results that are single numbers, by name."""
    return {name: value for name, value in measured.items() if isinstance(value, float)}


class Exports(Callback):
    """Calls exporters after each evaluation, with the checkpoint of the evaluated step.

    The callback runs after the checkpoint is saved, so a run that is killed during an export resumes from that
    checkpoint.

    Args:
        estimator: the estimator that is trained.
        evaluation: the callback that evaluates.
        exporters: the exporters to call.

    Attributes:
        results: the return value of each exporter's last call.
    """

    priority = Priority.SAVE + 1

    def __init__(self, estimator: Estimator, evaluation: ThrottledValidation, exporters: Sequence[Exporter]) -> None:
        self.results: list[str | None] = []
        self._estimator, self._evaluation, self._exporters = estimator, evaluation, exporters

    def trigger(self) -> None:
        trainer, measured = self.trainer, self._evaluation.measured
        if measured is None or measured["global_step"] != trainer.global_step or not trainer.run.state_is_sound:
            return
        is_final = trainer.global_step >= trainer.total_steps
        self.results = export_all(self._estimator, self._exporters, str(trainer.save()), measured, is_final)


def export_all(
    estimator: Estimator, exporters: Sequence[Exporter], checkpoint: str, measured: Mapping[str, Any], is_final: bool
) -> list[str | None]:
    """Call the exporters and return their results; see `Exporter.export`."""
    base = Path(estimator.model_dir) / "export"
    return [one.export(estimator, str(base / one.name), checkpoint, measured, is_final) for one in exporters]
