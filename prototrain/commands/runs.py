"""`prototrain runs`: list the experiments below a directory in a table."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

from prototrain.commands.arguments import option
from prototrain.config.schema import SCHEMA, UNSET
from prototrain.config.values import as_text, read_value
from prototrain.errors import ExperimentError, PrototrainError
from prototrain.experiment import Experiment
from prototrain.runs import Range, Run, find_runs, read_run, settings
from prototrain.system.terminal import Table, console, in_digits, in_words, matching, say, show

LOSSES = ("trn/loss", "vld/loss")
COLOURS = {"finished": "green", "failed": "red", "running": "cyan", "interrupted": "yellow"}
_NARROW = 100  # columns; a narrower terminal shows only one loss
_FACTS = {"steps": "step", "time": "seconds"} | {name: name for name in ("name", "state", "started", "checkpoint")}
_KEYS = f"{', '.join(_FACTS)}, a scalar (its last value), or a config key"


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    runs = commands.add_parser(
        "runs",
        help="list experiments: state, steps, losses, the best, time, changed config",
        description="List the experiments below a directory, the one that was started last at the end.",
    )
    runs.add_argument("directory", metavar="DIR", nargs="?", default="experiments", help="default: %(default)s")
    option(runs, "--json", "print a JSON list")
    option(runs, "--sort KEY", f"smallest first, by {_KEYS} (default: started)", default="started")
    option(runs, "--reverse", "the other way around")
    option(
        runs,
        "--filter KEY=VALUE",
        "only those of which this is so, with keys as for --sort; a text may have * in it; repeatable",
        type=_condition,
        action="append",
        default=[],
    )
    option(runs, "--scalar NAME", f"instead of {', '.join(LOSSES)}; may have * in it; repeatable", action="append")
    runs.set_defaults(command=_list)


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value


def _list(options: argparse.Namespace) -> None:
    where = Experiment(options.directory)  # fails if the name is impossible
    base = where.directory
    if not (base.is_dir() if where.remote is None else where.remote.top()):  # a storage has no empty directories
        raise ExperimentError(f"there is no directory {where}; name the one that holds the experiments")
    runs = []
    for directory in find_runs(base, lambda error: _complain(f"cannot read {error.filename}: {error.strerror}")):
        name = directory.relative_to(base).as_posix() if directory != base else directory.resolve().name
        try:
            runs.append(read_run(directory, name=name))
        except PrototrainError as error:  # still show the others
            _complain(error)
    for key in (options.sort, *(key for key, _ in options.filter)):
        if runs and key not in _FACTS and all(_fact(run, key) is None for run in runs):
            raise ExperimentError(f"none of these experiments has {key!r}, which must be {_KEYS}")
    found = [run for run in runs if all(_fits(_fact(run, key), value) for key, value in options.filter)]
    found = sorted_by(options.sort, found, reverse=options.reverse)
    if options.json:
        print(json.dumps([in_json(run, options.scalar) for run in found], indent=2))
    elif found:
        terminal = console()
        show(table(found, options.scalar, is_narrow=terminal is None or terminal.width < _NARROW))
    elif runs:
        say(f"none of the {len(runs)} experiments in {where} is like that")
    else:
        say(f"there are no experiments in {where}")


def _complain(text: object) -> None:
    say(f"prototrain: {text}", to_stderr=True)


def _fact(run: Run, key: str) -> Any:
    """Return the value of a column, a scalar or a config key; None if there is none."""
    if key in _FACTS:
        return getattr(run, _FACTS[key])
    if key in run.ranges:
        value = run.ranges[key].last
        return None if math.isnan(value) else value
    default = SCHEMA[key].default if key in SCHEMA else UNSET
    return settings(run).get(key, None if default is UNSET else default)


def _fits(known: Any, value: str) -> bool:
    return bool(known == read_value(value)) or (isinstance(known, str) and fnmatchcase(known, value))


def sorted_by(key: str, runs: Sequence[Run], *, reverse: bool = False) -> list[Run]:
    """Sort runs by a fact. Numbers come before texts, and runs without the fact come last."""

    def place(run: Run) -> tuple[bool, float, str]:
        fact = _fact(run, key)
        is_number = isinstance(fact, int | float)
        return not is_number, fact if is_number else 0.0, "" if is_number else as_text(fact)

    known = sorted((run for run in runs if _fact(run, key) is not None), key=place, reverse=reverse)
    rest = [run for run in runs if _fact(run, key) is None]
    # In the default order, the run that was started last is always at the end.
    return [*rest, *known] if key == "started" and not reverse else [*known, *rest]


# -- showing ----------------------------------------------------------------------------------------------------------


def table(runs: Sequence[Run], scalars: Sequence[str] | None = None, *, is_narrow: bool = False) -> Table:
    """Return a table of experiments.

    Args:
        runs: the experiments.
        scalars: names and patterns of the scalars to show; by default the losses, and the best value of the last one.
        is_narrow: whether to show only the last loss.

    Raises:
        ExperimentError: no run has a scalar for a pattern.
    """
    columns: dict[str, Callable[[Run], str | None]] = {
        "experiment": lambda run: run.name,
        "state": lambda run: run.ending,
        "steps": lambda run: str(run.step) if run.step == run.total_steps else run.steps,
    }
    known = list(dict.fromkeys(name for run in runs for name in run.ranges))
    if scalars is None:
        losses = [name for name in LOSSES if name in known]
        for name in losses[-1 if is_narrow else 0 :]:
            columns[name] = _of_scalar(name, lambda run, scalar: in_digits(scalar.last))
        if losses:
            best = winner(runs, losses[-1])
            columns["best"] = _of_scalar(
                losses[-1], lambda run, scalar: f"{in_digits(scalar.lowest[0])}{'*' if run is best else ''}"
            )
    else:
        for pattern in scalars:
            if not matching(known, [pattern]):
                raise ExperimentError(
                    f"none of these experiments has a scalar {pattern!r}; there are: {', '.join(known)}"
                )
        for name in matching(known, scalars):
            columns[f"{name} (lowest, highest)"] = _of_scalar(name, _with_ends)
    if any(run.checkpoint != run.step for run in runs):
        columns["checkpoint"] = lambda run: None if run.checkpoint is None else str(run.checkpoint)
    columns["time"] = lambda run: in_words(run.seconds)
    if any(_repeated(run) for run in runs):
        columns["repeated"] = _repeated
    short = shortened({key for run in runs for key, _, _ in run.changes or ()})
    columns["changed"] = lambda run: (
        "?" if run.changes is None else " ".join(f"{short[key]}={short_value(value)}" for key, value, _ in run.changes)
    )
    return Table(
        [[cell(run) for cell in columns.values()] for run in runs],
        list(columns),
        COLOURS,
        cut=("state", "changed"),
        options={"disable_numparse": True, "missingval": ""},
    )


def _of_scalar(name: str, cell: Callable[[Run, Range], str]) -> Callable[[Run], str | None]:
    return lambda run: cell(run, run.ranges[name]) if name in run.ranges else None


def _with_ends(run: Run, scalar: Range) -> str:
    return f"{in_digits(scalar.last)} ({in_digits(scalar.lowest[0])}, {in_digits(scalar.highest[0])})"


def shortened(keys: Collection[str]) -> dict[str, str]:
    """Shorten keys to as many of their last parts as tell them apart.

    >>> shortened({"model.optimizer.method", "model.lr_schedule.method", "model.width"})["model.width"]
    'width'
    """
    found = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        found[key] = next((end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1), key)
    return found


def short_value(value: Any) -> str:
    """Format a config value in a few characters: rounded numbers, lists without spaces."""
    if isinstance(value, list):
        return f"[{','.join(map(short_value, value))}]"
    return in_digits(value) if isinstance(value, float) else as_text(value)


def winner(runs: Sequence[Run], name: str) -> Run | None:
    """Return the run with the lowest value of a loss; None if fewer than two runs have the loss."""
    known = [run for run in runs if name in run.ranges and math.isfinite(run.ranges[name].lowest[0])]
    return min(known, key=lambda run: run.ranges[name].lowest[0]) if len(known) > 1 else None


def _repeated(run: Run) -> str | None:
    """Return "same" or "differs" for the values of steps that were repeated after a kill; None if there were none."""
    found = [attempt.repeated for attempt in run.attempts]
    return "differs" if False in found else "same" if True in found else None


def in_json(run: Run, scalars: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the facts about a run as JSON data."""
    found = {
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
        "repeated": _repeated(run),
        "changes": None
        if run.changes is None
        else [{"key": key, "value": value, "default": default} for key, value, default in run.changes],
    }
    if scalars is not None:
        found["scalars"] = {name: range_in_json(run.ranges[name]) for name in matching(run.ranges, scalars)}
    return found


def range_in_json(scalar: Range) -> dict[str, Any]:
    """Return the last value and the extremes of a scalar as JSON data, with null for NaN and infinity."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    ends = {"lowest": scalar.lowest, "highest": scalar.highest}
    return {"last": number(scalar.last)} | {
        name: {"value": number(value), "step": step} for name, (value, step) in ends.items()
    }
