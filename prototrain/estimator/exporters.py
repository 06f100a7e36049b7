"""Exporters: SavedModels that `train_and_evaluate` writes along with its evaluations."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.callbacks import Callback, Priority
from prototrain.errors import ConfigError, ExperimentError
from prototrain.estimator.throttled_validation import ThrottledValidation, scalars
from prototrain.system.files import write_atomic

if TYPE_CHECKING:
    from prototrain.estimator.estimator import Estimator

Results = Mapping[str, Any]


class Exporter:
    """Base of exporters; `EvalSpec(exporters=...)` takes them. Derive from it for one of your own.

    Attributes:
        name: the exports lie in ``export/<name>`` of the `model_dir`.
    """

    @property
    def name(self) -> str:
        """See above."""
        raise NotImplementedError

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Results,
        is_the_final_export: bool,
    ) -> str | None:
        """Called after each evaluation.

        Args:
            estimator: is trained.
            export_path: where exports go, a directory for this exporter.
            checkpoint_path: has the weights that were measured.
            eval_result: what was measured, by name, with "loss" and "global_step".
            is_the_final_export: whether the training is over.

        Returns:
            the directory of the export; None if there is none.
        """
        raise NotImplementedError


class LatestExporter(Exporter):
    """Exports a SavedModel after each evaluation.

    Beside the exports lies a note of the last one, ``export/<name>.json``: a run that was killed comes to some of its
    evaluations again, and the note tells which it has exported.

    Args:
        name: see `Exporter`.
        serving_input_receiver_fn: see `Estimator.export_saved_model`.
        assets_extra: files to go along, by their places in the export's ``assets.extra``.
        as_text: must be False.
        exports_to_keep: older exports are deleted; None keeps all.

    Raises:
        ConfigError: an argument is out of its range.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        who = type(self).__name__
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise ConfigError(f"{who}: the name must do for a directory, not {name!r}")
        if not callable(serving_input_receiver_fn):
            raise ConfigError(f"{who}: give it a serving_input_receiver_fn, which says what the export is fed with")
        if exports_to_keep is not None and (not isinstance(exports_to_keep, int) or exports_to_keep < 1):
            raise ConfigError(f"{who}: exports_to_keep must be a positive number or None, not {exports_to_keep!r}")
        self._name = name
        self._receive: Callable[[], Any] = serving_input_receiver_fn
        self._more: dict[str, Any] = {"assets_extra": assets_extra, "as_text": as_text}
        self._keep = exports_to_keep

    @property
    def name(self) -> str:
        return self._name

    def is_due(self, best: Results | None, eval_result: Results, is_the_final_export: bool) -> bool:
        """Whether to export.

        Args:
            best: what was measured at the last export; None if there was none.
            eval_result: what was measured now.
            is_the_final_export: whether the training is over.
        """
        return True

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Results,
        is_the_final_export: bool,
    ) -> str | None:
        note = _read_note(export_path)
        if note is not None and note["step"] == eval_result["global_step"]:
            there = Path(export_path) / note["exported"]
            if there.is_dir():
                return str(there)
        if not self.is_due(None if note is None else note["measured"], eval_result, is_the_final_export):
            return None
        place = estimator.export_saved_model(export_path, self._receive, checkpoint_path, **self._more)
        content = {"step": eval_result["global_step"], "exported": Path(place).name, "measured": scalars(eval_result)}
        write_atomic(_note(export_path), json.dumps(content) + "\n")
        if self._keep is not None:
            exports = sorted((path for path in Path(export_path).iterdir() if path.name.isdecimal()), key=_number)
            for old in exports[: -self._keep]:
                # A reader sees the whole of it or nothing.
                doomed = old.rename(old.with_name(f".tmp-{old.name}-{os.getpid()}"))
                shutil.rmtree(doomed, ignore_errors=True)
        return place


class FinalExporter(LatestExporter):
    """Exports once, when the training is over. For its arguments see `LatestExporter`."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, None)

    def is_due(self, best: Results | None, eval_result: Results, is_the_final_export: bool) -> bool:
        return is_the_final_export


def _loss_smaller(best_eval_result: Results, current_eval_result: Results) -> bool:
    return bool(current_eval_result["loss"] < best_eval_result["loss"])


class BestExporter(LatestExporter):
    """Exports after each evaluation that is better than all before, also those of an earlier part of the run.

    Args:
        name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep: see `LatestExporter`.
        event_file_pattern: not used: what was best is noted beside the exports.
        compare_fn: takes `best_eval_result` and `current_eval_result`, and says whether the current one is better; by
            default, whether its loss is smaller.

    Raises:
        ConfigError: an argument is out of its range.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = _loss_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._compare = compare_fn

    def is_due(self, best: Results | None, eval_result: Results, is_the_final_export: bool) -> bool:
        return best is None or bool(self._compare(best_eval_result=best, current_eval_result=eval_result))


class Exports(Callback):
    """Calls exporters when an evaluation has run, with the checkpoint of its step.

    It comes behind the saving of checkpoints: a run that is killed meanwhile goes on from that checkpoint, with this.

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

    def before_train(self) -> None:
        # A run may go on from before the step of an earlier export, and come to that step with other weights.
        for exporter in self._exporters:
            note = _read_note(path := place_of(self._estimator, exporter))
            if note is not None and note["step"] > self.trainer.global_step:
                _note(path).unlink()

    def trigger(self) -> None:
        trainer = self.trainer
        measured = self._evaluation.measured_at_present()
        if measured is None or not trainer.run.state_is_sound:
            return
        checkpoint = trainer.save()
        is_final = trainer.global_step >= trainer.total_steps
        self.results = export_all(self._estimator, self._exporters, str(checkpoint), measured, is_final)


def export_all(
    estimator: Estimator, exporters: Sequence[Exporter], checkpoint: str, measured: Results, is_final: bool
) -> list[str | None]:
    """Call exporters; see `Exporter.export`."""
    return [
        exporter.export(
            estimator=estimator,
            export_path=place_of(estimator, exporter),
            checkpoint_path=checkpoint,
            eval_result=measured,
            is_the_final_export=is_final,
        )
        for exporter in exporters
    ]


def place_of(estimator: Estimator, exporter: Exporter) -> str:
    """Where an exporter writes."""
    return str(Path(estimator.model_dir) / "export" / exporter.name)


def _note(export_path: str) -> Path:
    return Path(f"{export_path}.json")


def _read_note(export_path: str) -> dict[str, Any] | None:
    path = _note(export_path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"step": int(found["step"]), "exported": str(found["exported"]), "measured": dict(found["measured"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"{path} is damaged; delete it to have the next evaluation exported") from error


def _number(path: Path) -> int:
    return int(path.name)
