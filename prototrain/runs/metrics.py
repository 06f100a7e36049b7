"""Summaries and columns of a metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prototrain.experiment.rows import rows_of


@dataclass(frozen=True)
class Range:
    """The last value and the extremes of a scalar. An extreme is NaN only if all values are NaN.

    Attributes:
        last: the newest value.
        lowest, highest: (value, step) of the extremes. Of equal values, the first one counts.
    """

    last: float
    lowest: tuple[float, int]
    highest: tuple[float, int]


@dataclass
class Metrics:
    """A summary of all rows.

    Attributes:
        ranges: the range of each scalar, by name, in the order of first appearance.
        last_step, last_time: the step of the last row, and its time in seconds since the epoch; None if there is none.
    """

    ranges: dict[str, Range] = field(default_factory=dict)
    last_step: int | None = None
    last_time: float | None = None


@dataclass(frozen=True)
class Column:
    """The values of a scalar.

    Attributes:
        steps: the step of each value.
        values: NaN where the file has null.
    """

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def read_metrics(path: Path) -> Metrics:
    """Summarise a metrics.jsonl. The summary is empty if the file does not exist."""
    metrics = Metrics()
    kept: dict[str, list[Any]] = {}  # last value, lowest with its step, highest with its step
    for row in rows_of(path):
        step = metrics.last_step = row["step"]
        for name, value in row.items():
            if value.__class__ is not float and (value := _number(value)) is None:
                continue
            one = kept.get(name)
            if one is None:
                kept[name] = [value, value, step, value, step]
                continue
            one[0] = value
            if value < one[1] or one[1] != one[1]:  # NaN, which is not equal to itself
                one[1], one[2] = value, step
            if value > one[3] or one[3] != one[3]:
                one[3], one[4] = value, step
    metrics.last_time = kept["time"][0] if "time" in kept else None
    metrics.ranges = {
        name: Range(last, (lowest, at), (highest, then))
        for name, (last, lowest, at, highest, then) in kept.items()
        if name not in ("step", "time")
    }
    return metrics


def read_columns(path: Path, names: Iterable[str] | None = None) -> dict[str, Column]:
    """Read all values of the given scalars, or of all scalars if None, by name."""
    columns = {name: Column() for name in names or ()}
    for row in rows_of(path):
        for name, found in row.items():
            if name in ("step", "time") or (names is not None and name not in columns):
                continue
            if (value := _number(found)) is not None:
                column = columns.setdefault(name, Column())
                column.steps.append(row["step"])
                column.values.append(value)
    return columns


def _number(value: Any) -> float | None:
    """Return a number as a float, and null as NaN; None for anything else."""
    if value is None:
        return math.nan
    return float(value) if isinstance(value, float | int) else None
