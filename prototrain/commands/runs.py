"""`prototrain runs` and `prototrain compare`: experiments in a table, and the differences between them."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from prototrain.commands.arguments import option, override
from prototrain.config import UNSET_TEXT, differing
from prototrain.config.schema import SCHEMA, UNSET
from prototrain.config.values import as_text, read_value
from prototrain.errors import ExperimentError, PrototrainError
from prototrain.experiment import Experiment
from prototrain.runs import Range, Run, find_runs, flat, read_run, settings, short_names
from prototrain.system.terminal import Table, format_duration, format_number, matching, print_tables, say

_LOSSES = ("trn/loss", "vld/loss")
_COLORS = {"finished": "green", "failed": "red", "running": "cyan", "interrupted": "yellow"}
_FACTS = {"steps": "step", "time": "seconds"} | {name: name for name in ("name", "state", "started", "checkpoint")}
_KEYS = f"{', '.join(_FACTS)}, a scalar (its last value), or a config key"
_OF_EACH_RUN = ("run_id", "started", "command")  # always differ
_LONG = ("data.stages",)  # described in full by --json
_NOTHING = "-"  # in the cell of a run that has no value, where runs are compared


def add(commands: Any) -> None:
    """Declare the arguments of `runs`."""
    runs = commands.add_parser(
        "runs",
        help="list experiments: state, steps, losses, the best, time, changed config",
        description="List the experiments below a directory, the one that was started last at the end.",
    )
    runs.add_argument("directory", metavar="DIR", nargs="?", default="experiments", help="default: %(default)s")
    option(runs, "--json", "print a JSON list")
    option(runs, "--sort KEY", f"smallest first, by {_KEYS} (default: started)", default="started")
    option(runs, "--reverse", "the other way around")
    condition = "only those of which this is so, with keys as for --sort; a text may have * in it; repeatable"
    option(runs, "--filter KEY=VALUE", condition, type=override, action="append", default=[])
    option(runs, "--scalar NAME", "instead of the loss; may have * in it; repeatable", action="append")
    runs.set_defaults(command=_list)


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
    conditions = [text.partition("=")[::2] for text in options.filter]
    for key in (options.sort, *(key for key, _ in conditions)):
        if runs and key not in _FACTS and all(_fact(run, key) is None for run in runs):
            raise ExperimentError(f"none of these experiments has {key!r}, which must be {_KEYS}")
    found = [run for run in runs if all(_fits(_fact(run, key), value) for key, value in conditions)]
    found.sort(key=lambda run: _place(_fact(run, options.sort)), reverse=options.reverse)
    if options.json:
        print(json.dumps([_in_json(run, options.scalar) for run in found], indent=2))
    elif found:
        print_tables(table(found, options.scalar))
    elif runs:
        say(f"none of the {len(runs)} experiments in {where} matches")
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


def _place(fact: Any) -> tuple[int, float, str]:
    """Return the sort key of a fact: runs without it come before numbers, and numbers before texts."""
    if fact is None:
        return 0, 0.0, ""
    return (1, fact, "") if isinstance(fact, int | float) else (2, 0.0, as_text(fact))


def table(runs: Sequence[Run], scalars: Sequence[str] | None = None) -> Table:
    """Return a table of experiments with the scalars that match the patterns, by default with the loss."""
    columns: dict[str, Callable[[Run], str | None]] = {
        "experiment": lambda run: run.name,
        "state": lambda run: run.ending,
        "steps": lambda run: str(run.step) if run.step == run.total_steps else run.steps,
    }
    known = list(dict.fromkeys(name for run in runs for name in run.ranges))
    if scalars is None:
        loss = next((name for name in reversed(_LOSSES) if name in known), None)
        if loss is not None:
            best = _winner(runs, loss)
            columns[loss] = _of_scalar(loss, lambda run, scalar: format_number(scalar.last))
            columns["best"] = _of_scalar(
                loss, lambda run, scalar: format_number(scalar.lowest[0]) + "*" * (run is best)
            )
    else:
        if lacking := [pattern for pattern in scalars if not matching(known, [pattern])]:
            raise ExperimentError(
                f"none of these experiments has a scalar {lacking[0]!r}; there are: {', '.join(known)}"
            )
        for name in matching(known, scalars):
            columns[f"{name} (lowest to highest)"] = _of_scalar(name, lambda run, scalar: _range(scalar))
    if any(run.checkpoint != run.step for run in runs):
        columns["checkpoint"] = lambda run: None if run.checkpoint is None else str(run.checkpoint)
    columns["time"] = lambda run: format_duration(run.seconds)
    if any(_repeated(run) for run in runs):
        columns["repeated"] = _repeated
    columns["changed"] = lambda run: "?" if run.changes is None else " ".join(_change(*one) for one in run.changes)
    rows = [[cell(run) for cell in columns.values()] for run in runs]
    return Table(rows, list(columns), _COLORS, cut=("state", "changed"))


def _of_scalar(name: str, cell: Callable[[Run, Range], str]) -> Callable[[Run], str | None]:
    return lambda run: cell(run, run.ranges[name]) if name in run.ranges else None


def _change(key: str, value: Any, _default: Any) -> str:
    return f"{key.removeprefix('model.').removeprefix('trainer.')}={_short(value)}"


def _short(value: Any) -> str:
    """Format a config value in a few characters: rounded numbers, lists without spaces."""
    if value in ("", UNSET_TEXT):
        return _NOTHING
    if isinstance(value, list):
        return f"[{','.join(map(_short, value))}]"
    return format_number(value) if isinstance(value, float) else as_text(value)


def _winner(runs: Sequence[Run], name: str) -> Run | None:
    """Return the run with the lowest value of a loss; None if fewer than two runs have the loss."""
    known = [run for run in runs if name in run.ranges and math.isfinite(run.ranges[name].lowest[0])]
    return min(known, key=lambda run: run.ranges[name].lowest[0]) if len(known) > 1 else None


def _repeated(run: Run) -> str | None:
    """Return "same" or "differs" for the values of steps that were repeated after a kill; None if there were none."""
    found = [attempt.repeated for attempt in run.attempts]
    return "differs" if False in found else "same" if True in found else None


def _in_json(run: Run, scalars: Sequence[str] | None = None) -> dict[str, Any]:
    names = ("name", "state", "reason", "step", "total_steps", "started", "checkpoint")
    keys = ("key", "value", "default")
    changes = None if run.changes is None else [dict(zip(keys, change, strict=True)) for change in run.changes]
    found: dict[str, Any] = {name: getattr(run, name) for name in names} | {
        "directory": str(Experiment(run.directory)),
        "losses": {name: _range_in_json(run.ranges[name]) for name in _LOSSES if name in run.ranges},
        "seconds": round(run.seconds, 3),
        "repeated": _repeated(run),
        "changes": changes,
    }
    if scalars is not None:
        found["scalars"] = {name: _range_in_json(run.ranges[name]) for name in matching(run.ranges, scalars)}
    return found


def _range_in_json(scalar: Range) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None  # JSON cannot hold NaN

    ends = {"lowest": scalar.lowest, "highest": scalar.highest}
    found = {name: {"value": number(value), "step": step} for name, (value, step) in ends.items()}
    return {"last": number(scalar.last), **found}


def add_compare(commands: Any) -> None:
    """Declare the arguments of `compare`."""
    compare = commands.add_parser(
        "compare",
        help="show what differs between runs, and their results side by side",
        description="Show what differs between the configs and environments of runs, and their results side by side.",
    )
    compare.add_argument("first", metavar="A", help="an experiment's directory")
    compare.add_argument("others", metavar="B", nargs="+", help="another one's, or several")
    option(compare, "--json", "print a JSON object")
    compare.set_defaults(command=_compare)


def _compare(options: argparse.Namespace) -> None:
    runs = [read_run(directory) for directory in (options.first, *options.others)]
    config = differing([settings(run) for run in runs])
    lasting = [flat(run.environment) for run in runs]
    environment = differing([{key: one[key] for key in one if key not in _OF_EACH_RUN} for one in lasting])
    scalars = sorted({name for run in runs for name in run.ranges})
    if options.json:
        ranges = {
            name: [_range_in_json(run.ranges[name]) if name in run.ranges else None for run in runs] for name in scalars
        }
        found = {"runs": [_in_json(run) for run in runs], "config": dict(config), "environment": dict(environment)}
        print(json.dumps({**found, "scalars": ranges}, indent=2))
        return
    names = short_names(runs)
    environment = [(key, _apart(values)) for key, values in environment if key not in _LONG]
    for title, rows in (("config", config), ("environment", environment)):
        cells = [[key, *map(_short, values)] for key, values in rows]
        print_tables(Table(cells, [title, *names]) if cells else f"{title}: no differences", end="\n\n")
    print_tables(Table(_results(runs, scalars), ["result", *names], _COLORS))


def _apart(values: list[Any]) -> list[Any]:
    """Remove the elements that all lists have in common."""
    if not all(isinstance(value, list) for value in values):
        return values
    kept = [[one for one in value if not all(one in other for other in values)] for value in values]
    return [", ".join(map(str, value)) for value in kept] if any(kept) else values


def _results(runs: Sequence[Run], scalars: Sequence[str]) -> list[list[str]]:
    rows = [
        ["state", *(run.ending for run in runs)],
        ["steps", *(run.steps for run in runs)],
        ["time", *(format_duration(run.seconds) for run in runs)],
        ["checkpoint", *(_NOTHING if run.checkpoint is None else str(run.checkpoint) for run in runs)],
    ]
    for name in scalars:
        ranges = [run.ranges.get(name) for run in runs]
        if len({end for one in ranges for end in ((one.lowest[0], one.highest[0]) if one else [None])}) > 1:
            best = _winner(runs, name) if name in _LOSSES else None
            rows.append([name, *(_range(one, run is best) for one, run in zip(ranges, runs, strict=True))])
    return rows


def _range(scalar: Range | None, is_best: bool = False) -> str:
    """Format the last value, and the lowest and the highest one if the scalar varies."""
    if scalar is None:
        return _NOTHING
    lowest, highest = scalar.lowest[0], scalar.highest[0]
    ends = f" ({format_number(lowest)} to {format_number(highest)})" if lowest != highest else ""
    return f"{format_number(scalar.last)}{'*' if is_best else ''}{ends}"
