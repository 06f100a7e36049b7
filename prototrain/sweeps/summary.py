"""The progress and the result of a sweep: a line for each trial that ends, the best trial, and the final table."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from prototrain.config.values import as_text
from prototrain.experiment import Experiment
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.space import as_options, as_settings
from prototrain.sweeps.study import Outcome, Study
from prototrain.system.terminal import Table, in_digits, in_words, plain_table

_COLOURS = {"finished": "green", "failed": "red", "running": "cyan"}
_DONE = ("finished", "pruned", "failed")
_ORDER = ("finished", "pruned", "running", "stopped", "failed")


class Progress:
    """Describes the progress of a sweep."""

    def __init__(self, study: Study) -> None:
        self._study, self._start, self._ended = study, time.monotonic(), 0

    def after(self, number: int, ending: str) -> str:
        """Describe a trial that has just ended, with the number of ended trials, the best one, and the time left."""
        plan, trials = self._study.plan, self._study.outcomes()
        done = {trial.number for trial in trials if trial.state in _DONE}
        if number not in done:  # it was stopped, and continues later
            return f"trial {number} {ending}"
        self._ended += 1
        left = plan.total - len(done)
        facts = [f"{len(done)} of {plan.total}"]
        if (best := summarise(plan, trials).best) is not None and best.objective is not None:
            facts.append(f"best {in_digits(best.objective)} in trial {best.number}")
        if left:
            facts.append(f"about {in_words((time.monotonic() - self._start) / self._ended * left)} left")
        return f"trial {number} {ending} ({', '.join(facts)})"


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        trials: the outcomes of all trials, by number.
        best: the finished trial with the best value, or None if no trial has finished.
    """

    trials: Sequence[Outcome]
    best: Outcome | None


def summarise(plan: Plan, trials: Sequence[Outcome]) -> SweepResult:
    """Find the best trial."""
    finished = [trial for trial in trials if trial.state == "finished"]
    return SweepResult(trials, min(finished, key=lambda trial: _rank(plan, trial), default=None))


def _rank(plan: Plan, trial: Outcome) -> tuple[float, int]:
    value = trial.objective or 0.0
    return (value if plan.mode == "min" else -value), trial.number


def describe(plan: Plan, result: SweepResult, command: Sequence[str] | None) -> list[Table | str]:
    """Return the table of trials, best first, and lines about the failed trials and the best one, in order of display.

    `command` has the arguments of `prototrain` that all trials share; None if the model has no name.
    """
    rows = [
        [
            trial.number,
            *(_text(trial.values[key]) if key in trial.values else "" for key in plan.space),
            "" if trial.objective is None else in_digits(trial.objective),
            trial.step,
            trial.state,
        ]
        for trial in sorted(result.trials, key=lambda trial: (_ORDER.index(trial.state), _rank(plan, trial)))
    ]
    headers = ["trial", *plan.space, plan.objective, "step", "state"]
    found: list[Table | str] = [Table(rows, headers, _COLOURS)]
    failed = [trial for trial in result.trials if trial.state == "failed"]
    for trial in failed:
        log = Experiment(trial.directory).log
        found += [] if len(found) > 1 else [""]
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
    return in_digits(value) if isinstance(value, float) else as_text(value)
