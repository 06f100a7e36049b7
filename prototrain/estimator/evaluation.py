"""Callbacks of `train_and_evaluate`: evaluations, and exports after them."""

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

    def _measure(self, dataset: str, batches: int) -> dict[str, float] | None:
        self._built.take_over(self.trainer)
        self.measured = self._built.measure(self._spec.steps)
        return None if self.measured is None else scalars(self.measured)


def prefix(name: str | None) -> str:
    """The prefix of an evaluation's scalars: "eval", or "eval_<name>"."""
    return "eval" if name is None else f"eval_{name}"


def scalars(measured: Mapping[str, Any]) -> dict[str, float]:
    """The single numbers among what was measured, by name."""
    return {name: value for name, value in measured.items() if isinstance(value, float)}


class Exports(Callback):
    """Calls exporters when an evaluation has run, with the checkpoint of its step.

    It runs after the checkpoint is saved, so that a run that is killed during it continues from that checkpoint.

    Args:
        estimator: is trained.
        evaluation: measures.
        exporters: are called.

    Attributes:
        results: what the last calls returned, for each exporter.
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
    """Call exporters; see `Exporter.export`."""
    base = Path(estimator.model_dir) / "export"
    return [one.export(estimator, str(base / one.name), checkpoint, measured, is_final) for one in exporters]
