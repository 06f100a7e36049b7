"""The result of a sweep: the outcome of each trial, and the final table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prototrain.config.values import as_text
from prototrain.experiment import Experiment
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.space import as_options, as_settings
from prototrain.system.terminal import Table, format_number, plain_table

_COLORS = {"finished": "green", "failed": "red", "running": "cyan"}
_ORDER = ("finished", "pruned", "running", "stopped", "failed")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The state and the result of a trial.

    Attributes:
        number: the number of the trial, from 0.
        state: "finished", "pruned", "failed", "running", or "stopped" if the same command continues it.
        values: the config values of the trial, by key of the space.
        objective: the last value of the objective, or None.
        step: the step of that value, or None.
        directory: the directory of the trial's experiment.
        error: the reason of a failure, or None.
    """

    number: int
    state: str
    values: Mapping[str, Any]
    objective: float | None
    step: int | None
    directory: Path
    error: str | None


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        trials: the outcomes of all trials, by number.
        best: the finished trial with the best value, or None if no trial has finished.
    """

    trials: Sequence[Outcome]
    best: Outcome | None


def describe(plan: Plan, result: SweepResult, command: Sequence[str] | None) -> list[Table | str]:
    """Return the table of trials, best first, and lines about the failed trials and the best one.

    `command` has the arguments of `prototrain` that all trials share; None if the model has no name.
    """
    rows = [
        [
            trial.number,
            *(_text(trial.values[key]) if key in trial.values else "" for key in plan.space),
            "" if trial.objective is None else format_number(trial.objective),
            trial.step,
            trial.state,
        ]
        for trial in sorted(result.trials, key=lambda trial: (_ORDER.index(trial.state), plan.rank(trial.objective)))
    ]
    headers = ["trial", *plan.space, plan.objective, "step", "state"]
    found: list[Table | str] = [Table(rows, headers, _COLORS)]
    for trial in result.trials:
        if trial.state == "failed":
            log = Experiment(trial.directory).log
            found += [""] * (len(found) == 1)
            found.append(f"trial {trial.number} failed: {trial.error}{f' (see {log})' if log.exists() else ''}")
    if (best := result.best) is not None:
        settings = as_settings(best.values)
        again = settings if command is None else ["prototrain", *command, *as_options(settings)]
        lines = {
            "best": f"trial {best.number}",
            "directory": Experiment(best.directory),
            "again" if command else "values": shlex.join(again),
        }
        found += ["", plain_table(lines, width=None)]  # uncut lines, which can be copied
    return found


def _text(value: object) -> str:
    return format_number(value) if isinstance(value, float) else as_text(value)
