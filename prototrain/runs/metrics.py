"""What a metrics.jsonl holds: ranges of scalars in little memory, and columns of single scalars."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any

import orjson

from prototrain.experiment.rows import Row, blocks, read_rows
from prototrain.system.waiting import announcing

_LARGE_BYTES = 1 << 26  # a file that may take seconds to read
_NOT_SCALARS = ("step", "time")
_SCALAR = (float, int, NoneType)


@dataclass(frozen=True)
class Range:
    """A scalar over a run; NaN counts only where there is nothing else.

    Attributes:
        last: its newest value.
        lowest, highest: (value, step) of the extremes; of equal values the first one.
    """

    last: float
    lowest: tuple[float, int]
    highest: tuple[float, int]


@dataclass
class Metrics:
    """A summary of all rows.

    Attributes:
        ranges: of each scalar, by name, in the order of first appearance.
        last_step: of the last row; None if there is none.
        latest_before: for each requested moment, the time of the latest row before it; minus infinity if there is none.
    """

    ranges: dict[str, Range] = field(default_factory=dict)
    last_step: int | None = None
    latest_before: dict[float, float] = field(default_factory=dict)


@dataclass
class Column:
    """All values of a scalar.

    Attributes:
        steps: the step of each value.
        times: in seconds since the epoch; NaN for a row without a time.
        values: NaN where the file has null.
    """

    steps: list[int] = field(default_factory=list)
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))


def read_metrics(path: Path, moments: Iterable[float] = ()) -> Metrics:
    """Summarise a file of metrics; a million rows take about a second.

    Args:
        path: of metrics.jsonl, which need not exist.
        moments: in seconds since the epoch, for `Metrics.latest_before`, which always has infinity.

    Raises:
        OSError: the file cannot be read.
    """
    metrics = Metrics(latest_before=dict.fromkeys((*moments, math.inf), -math.inf))
    for rows in _row_blocks(path):
        # Rows with the same scalars are handled column by column, which is several times as fast as row by row.
        groups: dict[tuple[str, ...], list[Row]] = {}
        places: dict[tuple[str, ...], int] = {}  # of the last row of each group
        for place, row in enumerate(rows):
            names = tuple(row)
            if names in groups:
                groups[names].append(row)
            else:
                groups[names] = [row]
            places[names] = place
        found: dict[str, int] = {}  # the place of each scalar's last row so far
        for names, of_group in groups.items():
            place = places[names]
            columns = dict(zip(names, zip(*map(dict.values, of_group), strict=True), strict=True))
            _add_times(metrics.latest_before, columns.pop("time", ()))
            steps = columns.pop("step")
            for name, column in columns.items():
                _add_values(metrics.ranges, name, *_numbers(steps, column), is_last=place >= found.get(name, 0))
                found[name] = max(place, found.get(name, 0))
        if rows:
            metrics.last_step = rows[-1]["step"]
    return metrics


def read_columns(path: Path, names: Iterable[str] | None = None) -> dict[str, Column]:
    """Read all values of some scalars, or of all if None, by name.

    Raises:
        OSError: the file cannot be read.
    """
    wanted = None if names is None else list(names)
    columns = {name: Column() for name in wanted or ()}
    for rows in _row_blocks(path):
        for name in dict.fromkeys(chain.from_iterable(rows)) if wanted is None else wanted:
            found = [row for row in rows if isinstance(row.get(name, ""), _SCALAR)]
            if name in _NOT_SCALARS or not found:
                continue
            column = columns.setdefault(name, Column())
            column.steps += [row["step"] for row in found]
            column.times.extend(map(as_float, [row.get("time") for row in found]))
            column.values.extend(map(as_float, [row[name] for row in found]))
    return columns


def as_float(value: Any) -> float:
    """A value of a row as a number; NaN for null, which JSON has for what is not finite, and for anything else."""
    if type(value) is float:
        return value
    if not isinstance(value, int):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf if value > 0 else -math.inf


def _row_blocks(path: Path) -> Iterator[list[Row]]:
    """The rows of a file as it is now, some thousand at a time."""
    if not path.exists():
        return
    size = path.stat().st_size
    large = announcing(f"reading {path}, {size / 1e6:,.0f} MB", partial(print, file=sys.stderr, flush=True))
    with open(path, "rb") as file, large if size > _LARGE_BYTES else nullcontext():
        for block in blocks(file):
            yield _rows(block)
            if file.tell() >= size:  # a run may be writing to it
                return


def _rows(block: bytes) -> list[Row]:
    """All rows of some lines; read as one JSON array, which is fast, unless a line is not a row."""
    try:
        rows = orjson.loads(b"[%b]" % block.removesuffix(b"\n").replace(b"\n", b","))
        if b"\r" not in block and len(rows) == block.count(b"\n") and all(type(row["step"]) is int for row in rows):
            return list(rows)
    except (ValueError, TypeError, LookupError):
        pass
    return list(read_rows(block))


def _numbers(steps: Sequence[int], column: Sequence[Any]) -> tuple[Sequence[int], Sequence[float]]:
    """The numbers of a column, with their steps."""
    if set(map(type, column)) == {float}:
        return steps, column
    pairs = [(step, as_float(value)) for step, value in zip(steps, column, strict=True) if isinstance(value, _SCALAR)]
    return [step for step, _ in pairs], [value for _, value in pairs]


def _add_values(
    ranges: dict[str, Range], name: str, steps: Sequence[int], values: Sequence[float], *, is_last: bool
) -> None:
    """Extend a scalar's range by further values."""
    if not values:
        return
    found = Range(values[-1], *_extremes(steps, values))
    if (old := ranges.get(name)) is not None:
        # NaN compares with nothing, so the place of an old NaN is taken and a new one is ignored.
        extremes = [pair for pair in (old.lowest, old.highest, found.lowest, found.highest) if not math.isnan(pair[0])]
        low = min(extremes, default=found.lowest)
        high = max(extremes, key=lambda pair: (pair[0], -pair[1]), default=found.highest)
        found = Range(found.last if is_last else old.last, low, high)
    ranges[name] = found


def _extremes(steps: Sequence[int], values: Sequence[float]) -> tuple[tuple[float, int], tuple[float, int]]:
    numbers = [value for value in values if not math.isnan(value)] if math.isnan(sum(values)) else values
    if not numbers:
        return (math.nan, steps[-1]), (math.nan, steps[-1])
    low, high = min(numbers), max(numbers)
    return (low, steps[values.index(low)]), (high, steps[values.index(high)])


def _add_times(latest_before: dict[float, float], column: Sequence[Any]) -> None:
    times = [time for time in column if isinstance(time, int | float) and not math.isnan(time)]
    newest = max(times, default=-math.inf)
    for moment, latest in latest_before.items():
        before = newest if newest < moment else max((time for time in times if time < moment), default=latest)
        latest_before[moment] = max(latest, before)
