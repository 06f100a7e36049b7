"""`prototrain runs`: the experiments below a directory, as a table."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import shorten
from typing import Any

from prototrain.config.schema import SCHEMA, UNSET
from prototrain.config.values import as_text, read_value
from prototrain.errors import ConfigError, ExperimentError, PrototrainError
from prototrain.experiment import Experiment
from prototrain.runs import Range, Run, find_runs, read_run, settings
from prototrain.system.tables import Table, console, show
from prototrain.system.terminal import say
from prototrain.system.wording import in_digits, in_words, matching

LOSSES = ("trn/loss", "vld/loss")
COLOURS = {"finished": "green", "failed": "red", "unreadable": "red", "running": "cyan", "interrupted": "yellow"}
_WIDEST = 40  # characters of a column whose cells are folded
_LONGEST = 120  # characters of a reason; --json and the report have all of it
_WATCH_SECONDS = 2.0


@dataclass(frozen=True)
class Unreadable:
    """An experiment that is damaged."""

    name: str
    directory: Path
    why: str


Found = Run | Unreadable

_FACTS: dict[str, Callable[[Found], Any]] = {
    "name": lambda run: run.name,
    "state": lambda run: run.state if isinstance(run, Run) else "unreadable",
    "steps": lambda run: run.step if isinstance(run, Run) else None,
    "started": lambda run: run.started if isinstance(run, Run) else None,
    "time": lambda run: run.seconds if isinstance(run, Run) else None,
    "checkpoint": lambda run: run.checkpoint if isinstance(run, Run) else None,
}
_KEYS = f"{', '.join(_FACTS)}, a scalar (its last value), or a config key"


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    runs = commands.add_parser(
        "runs",
        help="list experiments: state, steps, losses, time, checkpoint, changed config",
        description="List the experiments below a directory, the one that was started last at the end.",
    )
    runs.add_argument("directory", metavar="DIR", nargs="?", default="experiments", help="default: %(default)s")
    runs.add_argument("--json", action="store_true", help="print a JSON list")
    runs.add_argument("--sort", metavar="KEY", default="started", help=f"smallest first, by {_KEYS} (default: started)")
    runs.add_argument("--reverse", action="store_true", help="the other way around")
    runs.add_argument(
        "--filter",
        metavar="KEY=VALUE",
        type=_condition,
        action="append",
        default=[],
        help="only those of which this is so, with keys as for --sort; a text may have * in it; repeatable",
    )
    runs.add_argument(
        "--scalar",
        metavar="NAME",
        action="append",
        help=f"in place of {', '.join(LOSSES)}; may have * in it; repeatable",
    )
    runs.add_argument(
        "--watch",
        metavar="SECONDS",
        type=_seconds,
        nargs="?",
        const=_WATCH_SECONDS,
        help="show it again and again, until Ctrl-C (default: every %(const)g seconds)",
    )
    runs.set_defaults(command=_list)


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds")
    return seconds


def _list(options: argparse.Namespace) -> None:
    if options.watch is None:
        _show(options)
        return
    if options.json:
        raise ConfigError("--watch shows a table; leave out --json")
    while True:
        if (terminal := console()) is not None:
            terminal.clear()
        _show(options)
        time.sleep(options.watch)


def _show(options: argparse.Namespace) -> None:
    where = Experiment(options.directory)  # which fails at a name that cannot be
    base = where.directory
    if not (base.is_dir() if where.remote is None else where.remote.top()):  # a storage has no empty directories
        raise ExperimentError(f"there is no directory {where}; name the one that holds the experiments")
    everything = [_read(directory, base) for directory in find_runs(base, _complain)]
    found = sorted_by(options.sort, filtered(everything, options.filter), reverse=options.reverse)
    if options.json:
        print(json.dumps([in_json(run, options.scalar) for run in found], indent=2))
    elif found:
        show(table(found, options.scalar))
    elif everything:
        say(f"none of the {len(everything)} experiments in {where} is like that")
    else:
        say(f"there are no experiments in {where}")


def _read(directory: Path, base: Path) -> Found:
    name = directory.relative_to(base).as_posix() if directory != base else directory.resolve().name
    try:
        return read_run(directory, name=name)
    except PrototrainError as error:  # the others are to be seen all the same
        return Unreadable(name, directory, str(error))


def _complain(error: OSError) -> None:
    say(f"prototrain: cannot read {error.filename}: {error.strerror}", to_stderr=True)


# -- choosing and sorting ---------------------------------------------------------------------------------------------


def fact(run: Found, key: str) -> Any:
    """What is known of a run under a name: a column's, a scalar's, or a key of the config; None if nothing is."""
    if key in _FACTS:
        return _FACTS[key](run)
    if isinstance(run, Unreadable):
        return None
    if key in run.ranges:
        return run.ranges[key].last
    default = SCHEMA[key].default if key in SCHEMA else UNSET
    return settings(run).get(key, None if default is UNSET else default)


def _check(runs: Sequence[Found], key: str) -> None:
    if runs and key not in _FACTS and all(fact(run, key) is None for run in runs):
        raise ExperimentError(f"none of these experiments has {key!r}, which must be {_KEYS}")


def filtered(runs: Sequence[Found], conditions: Sequence[tuple[str, str]]) -> list[Found]:
    """The runs of which all conditions are true, each a key and the text of a value.

    Raises:
        ExperimentError: no run at all has such a key.
    """
    for key, _ in conditions:
        _check(runs, key)
    return [run for run in runs if all(_is_so(fact(run, key), value) for key, value in conditions)]


def _is_so(known: Any, value: str) -> bool:
    if known == read_value(value):
        return True
    return isinstance(known, str) and fnmatchcase(known, value)


def sorted_by(key: str, runs: Sequence[Found], *, reverse: bool = False) -> list[Found]:
    """The runs in the order of what is known of them; numbers before texts, and where nothing is known at the end.

    Raises:
        ExperimentError: no run at all has such a key.
    """
    _check(runs, key)
    known = [run for run in runs if _is_something(fact(run, key))]
    rest = [run for run in runs if not _is_something(fact(run, key))]
    known.sort(key=lambda run: _place(fact(run, key)), reverse=reverse)
    # By default a run whose start is not known comes first: what was started last is always at the end.
    return [*rest, *known] if key == "started" and not reverse else [*known, *rest]


def _is_something(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _place(value: Any) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0.0, "" if is_number else as_text(value)


# -- showing ----------------------------------------------------------------------------------------------------------


def table(runs: Sequence[Found], scalars: Sequence[str] | None = None) -> Table:
    """The experiments as a table.

    Args:
        runs: the experiments.
        scalars: names and patterns of those to be shown; by default the losses.
    """
    names = list(LOSSES) if scalars is None else _chosen(runs, scalars)
    headers = ["experiment", "state", "steps", *(f"{name} (best)" for name in names), "time", "checkpoint", "changed"]
    if scalars is not None:
        headers[3:-3] = [f"{name} (lowest, highest)" for name in names]
    # tabulate takes the number of columns that it folds from the first row.
    nothing = [""] * (len(headers) - 2)
    rows = [
        _row(run, names, both=scalars is not None)
        if isinstance(run, Run)
        else [run.name, f"unreadable: {run.why}", *nothing]
        for run in runs
    ]
    widths = [None, _WIDEST, *[None] * (len(headers) - 3), _WIDEST]
    return Table(rows, headers, COLOURS, options={"maxcolwidths": widths, "disable_numparse": True, "missingval": ""})


def _chosen(runs: Sequence[Found], patterns: Sequence[str]) -> list[str]:
    known = list(dict.fromkeys(name for run in runs if isinstance(run, Run) for name in run.ranges))
    found = matching(known, patterns)
    for pattern in patterns:
        if not matching(known, [pattern]):
            raise ExperimentError(f"none of these experiments has a scalar {pattern!r}; there are: {', '.join(known)}")
    return found


def _row(run: Run, names: Sequence[str], *, both: bool) -> list[str | None]:
    scalars = [_scalar(run.ranges.get(name), both=both) for name in names]
    changes = "?" if run.changes is None else " ".join(f"{key}={as_text(value)}" for key, value, _ in run.changes)
    checkpoint = None if run.checkpoint is None else str(run.checkpoint)
    ending = shorten(run.ending, _LONGEST, placeholder=" ...")
    return [run.name, ending, run.steps, *scalars, in_words(run.seconds), checkpoint, changes]


def _scalar(scalar: Range | None, *, both: bool) -> str | None:
    """Its last value and its lowest one, which is the best of a loss; of others the highest as well."""
    if scalar is None:
        return None
    more = f", {in_digits(scalar.highest[0])}" if both else ""
    return f"{in_digits(scalar.last)} ({in_digits(scalar.lowest[0])}{more})"


def in_json(run: Found, scalars: Sequence[str] | None = None) -> dict[str, Any]:
    """What the table says of a run, as JSON can hold it."""
    if isinstance(run, Unreadable):
        return {"name": run.name, "directory": str(Experiment(run.directory)), "state": "unreadable", "reason": run.why}
    changes = (
        None
        if run.changes is None
        else [{"key": key, "value": value, "default": default} for key, value, default in run.changes]
    )
    chosen = {} if scalars is None else {"scalars": _ranges(run, matching(list(run.ranges), scalars))}
    return {
        "name": run.name,
        "directory": str(Experiment(run.directory)),
        "state": run.state,
        "reason": run.reason,
        "step": run.step,
        "total_steps": run.total_steps,
        "losses": _ranges(run, LOSSES),
        **chosen,
        "started": run.started,
        "seconds": round(run.seconds, 3),
        "checkpoint": run.checkpoint,
        "changes": changes,
    }


def _ranges(run: Run, names: Sequence[str]) -> dict[str, Any]:
    return {name: range_in_json(run.ranges[name]) for name in names if name in run.ranges}


def range_in_json(scalar: Range) -> dict[str, Any]:
    """A scalar's last value and extremes; null where they are not numbers."""
    extremes = {"lowest": scalar.lowest, "highest": scalar.highest}
    return {"last": _number(scalar.last)} | {
        name: {"value": _number(value), "step": step} for name, (value, step) in extremes.items()
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
