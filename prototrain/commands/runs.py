"""`prototrain runs`: the experiments below a directory, as a table."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from prototrain.commands.arguments import option
from prototrain.config.schema import SCHEMA, UNSET
from prototrain.config.values import as_text, read_value
from prototrain.errors import ExperimentError, PrototrainError
from prototrain.experiment import Experiment
from prototrain.runs import Range, Run, find_runs, read_run, settings
from prototrain.system.terminal import Table, console, say, show
from prototrain.system.wording import in_digits, in_words, matching

LOSSES = ("trn/loss", "vld/loss")
COLOURS = {"finished": "green", "failed": "red", "unreadable": "red", "running": "cyan", "interrupted": "yellow"}
_NARROW = 100  # characters; where there are fewer, one loss is shown


@dataclass(frozen=True)
class Unreadable:
    """An experiment that is damaged; of what a run has, only its name and its directory are known."""

    name: str
    directory: Path
    why: str

    state = "unreadable"
    step = started = seconds = checkpoint = changes = None
    ranges: ClassVar[Mapping[str, Range]] = {}
    attempts = ()


Found = Run | Unreadable

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
    where = Experiment(options.directory)  # which fails at a name that cannot be
    base = where.directory
    if not (base.is_dir() if where.remote is None else where.remote.top()):  # a storage has no empty directories
        raise ExperimentError(f"there is no directory {where}; name the one that holds the experiments")
    everything = [_read(directory, base) for directory in find_runs(base, _complain)]
    found = sorted_by(options.sort, filtered(everything, options.filter), reverse=options.reverse)
    if options.json:
        print(json.dumps([in_json(run, options.scalar) for run in found], indent=2))
    elif found:
        terminal = console()
        show(table(found, options.scalar, is_narrow=terminal is None or terminal.width < _NARROW))
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
        return getattr(run, _FACTS[key])
    if key in run.ranges:
        return run.ranges[key].last
    if isinstance(run, Unreadable):
        return None
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


def table(runs: Sequence[Found], scalars: Sequence[str] | None = None, *, is_narrow: bool = False) -> Table:
    """The experiments as a table.

    It has the scalars of some names and patterns; by default the losses, or the last one only, and its best value.
    """
    is_known = [name for name in LOSSES if any(name in run.ranges for run in runs)]
    names = is_known[-1 if is_narrow else 0 :] if scalars is None else _chosen(runs, scalars)
    columns: dict[str, Callable[[Run], str | None]] = {
        "experiment": lambda run: run.name,
        "state": lambda run: run.ending,
        "steps": lambda run: str(run.step) if run.step == run.total_steps else run.steps,
    }
    for name in names:
        title = name if scalars is None else f"{name} (lowest, highest)"
        columns[title] = partial(_scalar, name=name, both=scalars is not None)
    if scalars is None and names:
        columns["best"] = partial(_best, name=names[-1], winner=winner(runs, names[-1]))
    if any(run.checkpoint != run.step for run in runs):
        columns["checkpoint"] = lambda run: None if run.checkpoint is None else str(run.checkpoint)
    columns["time"] = lambda run: in_words(run.seconds)
    if any(_repeated(run) for run in runs):
        columns["repeated"] = _repeated
    short = shortened({key for run in runs for key, _, _ in run.changes or ()})
    columns["changed"] = partial(_changed, short=short)
    nothing = [""] * (len(columns) - 2)
    rows = [
        [cell(run) for cell in columns.values()]
        if isinstance(run, Run)
        else [run.name, f"unreadable: {run.why}", *nothing]
        for run in runs
    ]
    return Table(
        rows,
        list(columns),
        COLOURS,
        cut=("state", "changed"),
        options={"disable_numparse": True, "missingval": ""},
    )


def shortened(keys: Collection[str]) -> dict[str, str]:
    """The last parts of keys: as many as tell them apart.

    >>> shortened({"model.optimizer.method", "model.lr_schedule.method", "model.width"})["model.width"]
    'width'
    """
    found = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        found[key] = next((end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1), key)
    return found


def _changed(run: Run, short: Mapping[str, str]) -> str:
    if run.changes is None:
        return "?"
    return " ".join(f"{short[key]}={short_value(value)}" for key, value, _ in run.changes)


def short_value(value: Any) -> str:
    """A value of a config in a few characters: numbers rounded, lists without spaces."""
    if isinstance(value, list):
        return f"[{','.join(map(short_value, value))}]"
    return in_digits(value) if isinstance(value, float) else as_text(value)


def winner(runs: Sequence[Found], name: str) -> Found | None:
    """The run in which a loss was lowest; None if there is only one run that has it."""
    known = [run for run in runs if math.isfinite(_lowest(run, name))]
    return min(known, key=lambda run: _lowest(run, name)) if len(known) > 1 else None


def _lowest(run: Found, name: str) -> float:
    return run.ranges[name].lowest[0] if name in run.ranges else math.nan


def _best(run: Run, name: str, winner: Found | None) -> str | None:
    mark = "*" if run is winner else ""
    return f"{in_digits(_lowest(run, name))}{mark}" if name in run.ranges else None


def _chosen(runs: Sequence[Found], patterns: Sequence[str]) -> list[str]:
    known = list(dict.fromkeys(name for run in runs for name in run.ranges))
    found = matching(known, patterns)
    for pattern in patterns:
        if not matching(known, [pattern]):
            raise ExperimentError(f"none of these experiments has a scalar {pattern!r}; there are: {', '.join(known)}")
    return found


def _repeated(run: Found) -> str | None:
    """Whether steps that were made again after a kill gave the same values, in one word."""
    found = [attempt.repeated for attempt in run.attempts]
    return "differs" if False in found else "same" if True in found else None


def _scalar(run: Run, name: str, *, both: bool) -> str | None:
    """The last value of a scalar, and on request its lowest and highest one."""
    if (scalar := run.ranges.get(name)) is None:
        return None
    more = f" ({in_digits(scalar.lowest[0])}, {in_digits(scalar.highest[0])})" if both else ""
    return f"{in_digits(scalar.last)}{more}"


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
        "repeated": _repeated(run),
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
