"""Evaluations and exports during `train_and_evaluate`."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.callbacks import Callback, Priority, Validation
from prototrain.errors import ConfigError
from prototrain.estimator.specs import EvalSpec
from prototrain.estimator.trainers import BuiltProgram
from prototrain.experiment.record import read_attempts
from prototrain.system.files import write_atomic

if TYPE_CHECKING:
    from prototrain.estimator.estimator import Estimator

Results = Mapping[str, Any]


class Exporter:
    """Base class of exporters for `EvalSpec(exporters=...)`.

    Attributes:
        name: the name of the exporter's directory, ``export/<name>`` in the `model_dir`.
    """

    name: str

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Results,
        is_the_final_export: bool,
    ) -> str | None:
        """Called after each evaluation to export the model.

        Args:
            estimator: the estimator that is trained.
            export_path: the directory for this exporter's exports.
            checkpoint_path: the checkpoint with the evaluated weights.
            eval_result: the results by name, including "loss" and "global_step".
            is_the_final_export: whether training has ended.

        Returns:
            The directory of the export, or None if nothing was exported.
        """
        raise NotImplementedError


class LatestExporter(Exporter):
    """Exports a SavedModel after each evaluation.

    ``export/<name>.json`` records the last export, so a resumed run exports no evaluation twice.

    Args:
        name: see `Exporter`.
        serving_input_receiver_fn: see `Estimator.export_saved_model`.
        exports_to_keep: the number of exports to keep; older ones are deleted. None keeps all.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(
        self, name: str, serving_input_receiver_fn: Callable[[], Any] | None, *, exports_to_keep: int | None = 5
    ) -> None:
        who = type(self).__name__
        if not name or Path(name).name != name:
            raise ConfigError(f"{who}: the name must be usable as a directory name, not {name!r}")
        if serving_input_receiver_fn is None:
            raise ConfigError(f"{who}: give it a serving_input_receiver_fn, which says what the export is fed with")
        if exports_to_keep is not None and exports_to_keep < 1:
            raise ConfigError(f"{who}: exports_to_keep must be a positive number or None, not {exports_to_keep}")
        self.name = name
        self._receive: Callable[[], Any] = serving_input_receiver_fn
        self._keep = exports_to_keep

    def is_due(self, last: Results | None, eval_result: Results, is_the_final_export: bool) -> bool:
        """Return whether to export; `last` has the results at the last export, or is None before the first one."""
        return True

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Results,
        is_the_final_export: bool,
    ) -> str | None:
        noted, note = Path(f"{export_path}.json"), None
        if noted.exists():
            note = json.loads(noted.read_text(encoding="utf-8"))
            last = Path(export_path) / note["exported"]
            if note["step"] == eval_result["global_step"] and last.is_dir():
                return str(last)
        if not self.is_due(note and note["measured"], eval_result, is_the_final_export):
            return None
        for unfinished in Path(export_path).glob(".tmp-*"):  # of a killed run
            shutil.rmtree(unfinished, ignore_errors=True)
        place = estimator.export_saved_model(export_path, self._receive, checkpoint_path=checkpoint_path)
        numbers = {key: value for key, value in eval_result.items() if isinstance(value, int | float)}
        content = {"step": eval_result["global_step"], "exported": Path(place).name, "measured": numbers}
        write_atomic(noted, json.dumps(content) + "\n")
        exports = [path for path in Path(export_path).iterdir() if path.name.isdecimal()]
        for old in sorted(exports, key=lambda path: int(path.name))[: -(self._keep or len(exports))]:
            # Rename first, so that no reader sees a partly deleted export.
            doomed = old.rename(old.with_name(f".tmp-{old.name}-{os.getpid()}"))
            shutil.rmtree(doomed, ignore_errors=True)
        return place


class FinalExporter(LatestExporter):
    """Exports once, at the end of training; see `LatestExporter` for the arguments."""

    def __init__(self, name: str, serving_input_receiver_fn: Callable[[], Any]) -> None:
        super().__init__(name, serving_input_receiver_fn, exports_to_keep=None)

    def is_due(self, last: Results | None, eval_result: Results, is_the_final_export: bool) -> bool:
        return is_the_final_export


def _loss_smaller(best_eval_result: Results, current_eval_result: Results) -> bool:
    return bool(current_eval_result["loss"] < best_eval_result["loss"])


class BestExporter(LatestExporter):
    """Exports after each evaluation that is better than all earlier ones, including those before a resume.

    Args:
        name, serving_input_receiver_fn, exports_to_keep: see `LatestExporter`.
        compare_fn: takes `best_eval_result` and `current_eval_result` and returns whether the current one is better.
            The default compares the losses.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        *,
        compare_fn: Callable[..., bool] = _loss_smaller,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, exports_to_keep=exports_to_keep)
        self._compare = compare_fn

    def is_due(self, last: Results | None, eval_result: Results, is_the_final_export: bool) -> bool:
        return last is None or bool(self._compare(best_eval_result=last, current_eval_result=eval_result))


class ThrottledValidation(Validation):
    """Evaluates the current weights at most as often as an `EvalSpec` allows, and at the end of the run.

    Attributes:
        measured: the results of the last evaluation of this run, or None before the first one.
        restored: those of the last evaluation before a resume.
    """

    def __init__(self, built: BuiltProgram, spec: EvalSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._prefix = prefix(spec.name)
        super().__init__(prefix=self._prefix, evaluate=self._measure)
        self.measured: dict[str, Any] | None = None
        self.restored: dict[str, Any] | None = None
        self._built, self._spec, self._clock = built, spec, clock
        self._not_before = 0.0

    def before_train(self) -> None:
        self._not_before = self._clock() + self._spec.start_delay_secs

    def state_dict(self) -> dict[str, Any]:
        return {"measured": self.measured or self.restored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restored = state["measured"]

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

    The callback runs after the checkpoint is saved. A run that is killed during an export resumes from that checkpoint,
    and calls the exporters again for its step.

    Attributes:
        results: the return value of each exporter's last call.
        were_final: whether these were the exports at the end of training; True if there are no exporters.
    """

    priority = Priority.SAVE + 1

    def __init__(self, estimator: Estimator, evaluation: ThrottledValidation, exporters: Sequence[Exporter]) -> None:
        self.results: list[str | None] = []
        self.were_final = not exporters
        self._estimator, self._evaluation, self._exporters = estimator, evaluation, exporters

    def before_train(self) -> None:
        experiment = self.trainer.require_experiment("Exports")
        was_killed = [attempt.state for attempt in read_attempts(experiment.record)][-2:-1] == ["running"]
        if was_killed and self.trainer.global_step < self.trainer.total_steps:
            self._export(self._evaluation.restored)

    def trigger(self) -> None:
        self._export(self._evaluation.measured)

    def _export(self, measured: Mapping[str, Any] | None) -> None:
        trainer = self.trainer
        if measured is None or measured["global_step"] != trainer.global_step or not trainer.run.state_is_sound:
            return
        self.were_final = trainer.global_step >= trainer.total_steps
        checkpoint = str(trainer.save())
        self.results = export_all(self._estimator, self._exporters, checkpoint, measured, self.were_final)


def export_all(
    estimator: Estimator, exporters: Sequence[Exporter], checkpoint: str, measured: Mapping[str, Any], is_final: bool
) -> list[str | None]:
    """Call the exporters and return their results; see `Exporter.export`."""
    base = Path(estimator.model_dir) / "export"
    return [one.export(estimator, str(base / one.name), checkpoint, measured, is_final) for one in exporters]
