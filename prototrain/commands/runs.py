"""`prototrain runs`: the experiments below a directory, as a table."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from prototrain.config.json_form import as_text
from prototrain.errors import ExperimentError, PrototrainError
from prototrain.experiment import Experiment
from prototrain.runs import Range, Run, find_runs, read_run
from prototrain.system.tables import table as in_columns
from prototrain.system.terminal import say
from prototrain.system.wording import in_digits, in_words

LOSSES = ("trn/loss", "vld/loss")
_WIDEST = 40  # characters of a column whose cells are folded
_LONGEST = 120  # characters of a reason; --json and the report have all of it


@dataclass(frozen=True)
class Unreadable:
    """An experiment that is damaged."""

    name: str
    directory: Path
    why: str


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    runs = commands.add_parser(
        "runs",
        help="list experiments: state, steps, losses, time, checkpoint, changed config",
        description="List the experiments below a directory, the one that was started last at the end.",
    )
    runs.add_argument("directory", metavar="DIR", nargs="?", default="experiments", help="default: %(default)s")
    runs.add_argument("--json", action="store_true", help="print a JSON list")
    runs.set_defaults(command=_list)


def _list(options: argparse.Namespace) -> None:
    where = Experiment(options.directory)  # which fails at a name that cannot be
    base = where.directory
    if where.remote is None and not base.is_dir():
        raise ExperimentError(f"there is no directory {base}; name the one that holds the experiments")
    found = [_read(directory, base) for directory in find_runs(base, _complain)]
    found.sort(key=lambda run: run.started or 0.0 if isinstance(run, Run) else 0.0)
    if options.json:
        print(json.dumps([in_json(run) for run in found], indent=2))
    elif found:
        say(table(found))
    else:
        say(f"there are no experiments in {where}")


def _read(directory: Path, base: Path) -> Run | Unreadable:
    name = directory.relative_to(base).as_posix() if directory != base else directory.resolve().name
    try:
        return read_run(directory, name=name)
    except PrototrainError as error:  # the others are to be seen all the same
        return Unreadable(name, directory, str(error))


def _complain(error: OSError) -> None:
    say(f"prototrain: cannot read {error.filename}: {error.strerror}", to_stderr=True)


def table(runs: list[Run | Unreadable]) -> str:
    """The experiments as a table."""
    headers = ["experiment", "state", "steps", *(f"{name} (best)" for name in LOSSES), "time", "checkpoint", "changed"]
    # tabulate takes the number of columns that it folds from the first row.
    nothing = [""] * (len(headers) - 2)
    rows = [_row(run) if isinstance(run, Run) else [run.name, f"unreadable: {run.why}", *nothing] for run in runs]
    widths = [None, _WIDEST, *[None] * (len(headers) - 3), _WIDEST]
    return in_columns(rows, headers=headers, maxcolwidths=widths, disable_numparse=True, missingval="")


def _row(run: Run) -> list[str | None]:
    losses = [_loss(run.ranges.get(name)) for name in LOSSES]
    changes = "?" if run.changes is None else " ".join(f"{key}={as_text(value)}" for key, value, _ in run.changes)
    checkpoint = None if run.checkpoint is None else str(run.checkpoint)
    ending = shorten(run.ending, _LONGEST, placeholder=" ...")
    return [run.name, ending, run.steps, *losses, in_words(run.seconds), checkpoint, changes]


def _loss(scalar: Range | None) -> str | None:
    return None if scalar is None else f"{in_digits(scalar.last)} ({in_digits(scalar.lowest[0])})"


def in_json(run: Run | Unreadable) -> dict[str, Any]:
    """What the table says of a run, as JSON can hold it."""
    if isinstance(run, Unreadable):
        return {"name": run.name, "directory": str(Experiment(run.directory)), "state": "unreadable", "reason": run.why}
    changes = (
        None
        if run.changes is None
        else [{"key": key, "value": value, "default": default} for key, value, default in run.changes]
    )
    return {
        "name": run.name,
        "directory": str(Experiment(run.directory)),
        "state": run.state,
        "reason": run.reason,
        "step": run.step,
        "total_steps": run.total_steps,
        "losses": {name: range_in_json(run.ranges[name]) for name in LOSSES if name in run.ranges},
        "started": run.started,
        "seconds": round(run.seconds, 3),
        "checkpoint": run.checkpoint,
        "changes": changes,
    }


def range_in_json(scalar: Range) -> dict[str, Any]:
    """A scalar's last value and extremes; null where they are not numbers."""
    extremes = {"lowest": scalar.lowest, "highest": scalar.highest}
    return {"last": _number(scalar.last)} | {
        name: {"value": _number(value), "step": step} for name, (value, step) in extremes.items()
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
