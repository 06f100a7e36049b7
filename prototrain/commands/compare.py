"""`prototrain compare`: show the differences between runs, and their results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from prototrain.commands.arguments import option
from prototrain.commands.runs import COLOURS, LOSSES, in_json, range_in_json, short_value, winner
from prototrain.config import UNSET_TEXT, differing
from prototrain.runs import Range, Run, flat, read_run, settings, short_names
from prototrain.system.terminal import Table, in_digits, in_words, show

_OF_EACH_RUN = ("run_id", "started", "command")  # always differ

_LONG = ("data.stages",)  # described in full by --json

_AS_TEXT = {"disable_numparse": True}
_NOTHING = "-"  # in the cell of a run that has no value


def add(commands: Any) -> None:
    """Declare the command's arguments."""
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
            name: [range_in_json(run.ranges[name]) if name in run.ranges else None for run in runs] for name in scalars
        }
        found = {"runs": [in_json(run) for run in runs], "config": dict(config), "environment": dict(environment)}
        print(json.dumps({**found, "scalars": ranges}, indent=2))
        return
    names = short_names(runs)
    environment = [(key, _apart(values)) for key, values in environment if key not in _LONG]
    for title, rows in (("config", config), ("environment", environment)):
        cells = [
            [key, *(_NOTHING if value in ("", UNSET_TEXT) else short_value(value) for value in values)]
            for key, values in rows
        ]
        show(Table(cells, [title, *names], options=_AS_TEXT) if cells else f"{title}: no differences", end="\n\n")
    show(Table(_results(runs, scalars), ["result", *names], COLOURS, options=_AS_TEXT))


def _apart(values: list[Any]) -> list[Any]:
    """Remove the elements that all lists have in common."""
    if not all(isinstance(value, list) for value in values):
        return values
    kept = [[one for one in value if not all(one in other for other in values)] for value in values]
    return [", ".join(map(str, value)) for value in kept] if any(kept) else values


def _results(runs: Sequence[Run], scalars: Sequence[str]) -> list[list[str]]:
    facts: dict[str, Callable[[Run], str]] = {
        "state": lambda run: run.ending,
        "steps": lambda run: run.steps,
        "time": lambda run: in_words(run.seconds),
        "checkpoint": lambda run: _NOTHING if run.checkpoint is None else str(run.checkpoint),
    }
    rows = [[name, *map(fact, runs)] for name, fact in facts.items()]
    for name in scalars:
        ranges = [run.ranges.get(name) for run in runs]
        if len({(one.lowest[0], one.highest[0]) if one else None for one in ranges}) > 1 or _varies(ranges[0]):
            best = winner(runs, name) if name in LOSSES else None
            rows.append([name, *(_range(one, run is best) for one, run in zip(ranges, runs, strict=True))])
    return rows


def _varies(scalar: Range | None) -> bool:
    return scalar is not None and scalar.lowest[0] != scalar.highest[0]


def _range(scalar: Range | None, is_best: bool) -> str:
    if scalar is None:
        return _NOTHING
    ends = f" ({in_digits(scalar.lowest[0])} to {in_digits(scalar.highest[0])})" if _varies(scalar) else ""
    return f"{in_digits(scalar.last)}{'*' if is_best else ''}{ends}"
