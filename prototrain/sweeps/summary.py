"""What a sweep has come to, for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prototrain.config.values import as_text
from prototrain.experiment import Experiment
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.space import as_options, as_settings
from prototrain.sweeps.study import Outcome
from prototrain.system.tables import Table
from prototrain.system.wording import in_digits

_COLOURS = {"finished": "green", "failed": "red", "running": "cyan"}
_ORDER = ("finished", "pruned", "running", "stopped", "failed")


@dataclass(frozen=True)
class SweepResult:
    """What a sweep has come to.

    Attributes:
        trials: all of them, by number.
        best: the finished one with the best value, or None if none has finished.
    """

    trials: Sequence[Outcome]
    best: Outcome | None


def summarise(plan: Plan, trials: Sequence[Outcome]) -> SweepResult:
    """Find the best trial."""
    finished = [trial for trial in trials if trial.state == "finished"]
    return SweepResult(trials, min(finished, key=lambda trial: _rank(plan, trial), default=None))


def describe(plan: Plan, result: SweepResult, command: Sequence[str] | None) -> list[Table | str]:
    """The table of trials, the best first, and where to find that one; in pieces that stand below each other.

    Args:
        plan: the sweep.
        result: what it has come to.
        command: what stands behind `prototrain` for the model, to which the best trial's values are added; None if the
            model has no name.
    """
    ranked = sorted(result.trials, key=lambda trial: (_ORDER.index(trial.state), _rank(plan, trial)))
    keys = list(plan.space)
    rows = [
        [trial.number, *(_cell(trial.values, key) for key in keys), _number(trial.objective), trial.step, trial.state]
        for trial in ranked
    ]
    headers = ["trial", *keys, plan.objective, "step", "state"]
    trials = Table(rows, headers, _COLOURS, options={"disable_numparse": True})
    errors = [_error(trial) for trial in result.trials if trial.state == "failed"]
    return [trials, *([""] if errors else []), *errors, *_best_lines(result.best, command)]


def _error(trial: Outcome) -> str:
    log = Experiment(trial.directory).log
    return f"trial {trial.number} failed: {trial.error}{f' (see {log})' if log.exists() else ''}"


def _best_lines(best: Outcome | None, command: Sequence[str] | None) -> list[Table | str]:
    if best is None:
        return []
    settings = as_settings(best.values)
    again = settings if command is None else ["prototrain", *command, *as_options(settings)]
    rows = [
        ("best", f"trial {best.number}"),
        ("directory", str(Experiment(best.directory))),
        ("again" if command else "values", shlex.join(again)),
    ]
    return ["", str(Table(rows, options={"tablefmt": "plain"}))]  # whole lines, to be copied


def _rank(plan: Plan, trial: Outcome) -> tuple[float, int]:
    value = 0.0 if trial.objective is None else trial.objective
    return (value if plan.mode == "min" else -value), trial.number


def _number(value: float | None) -> str:
    return "" if value is None else in_digits(value)


def _cell(values: Mapping[str, object], key: str) -> str:
    if key not in values:
        return ""
    value = values[key]
    return in_digits(value) if isinstance(value, float) else as_text(value)
