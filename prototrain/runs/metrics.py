"""Summaries and columns of a metrics.jsonl."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from prototrain.experiment.rows import Row, blocks, read_rows
from prototrain.runs.reading import Range
from prototrain.system.waiting import announcing

_LARGE_BYTES = 1 << 26  # a file that may take seconds to read
_SCALAR = {float, int, bool, NoneType}
_MISSING = object()


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


@dataclass(frozen=True)
class Column:
    """Values of a scalar.

    Attributes:
        steps: the step of each value.
        times: in seconds since the epoch; NaN for a row without a time.
        values: NaN where the file has null.
    """

    steps: np.ndarray
    times: np.ndarray
    values: np.ndarray


def read_metrics(path: Path, moments: Iterable[float] = ()) -> Metrics:
    """Summarise a file of metrics; a million rows take about two seconds.

    Args:
        path: of metrics.jsonl, which need not exist.
        moments: in seconds since the epoch, for `Metrics.latest_before`, which always has infinity.

    Raises:
        OSError: the file cannot be read.
    """
    metrics = Metrics(latest_before=dict.fromkeys((*moments, math.inf), -math.inf))
    for rows in _row_blocks(path):
        metrics.last_step = rows[-1]["step"]
        for name, column in _columns(rows).items():
            pairs = [_pair(column, place) for place in _extremes(column.values)]
            if (old := metrics.ranges.get(name)) is not None:  # before the new pairs: of equal values the first counts
                pairs = [old.lowest, old.highest, *pairs]
            lowest = min(pairs, key=lambda pair: (math.isnan(pair[0]), pair[0]))
            highest = max(pairs, key=lambda pair: (not math.isnan(pair[0]), pair[0], -pair[1]))
            metrics.ranges[name] = Range(float(column.values[-1]), lowest, highest)
        times = _numbers([row.get("time") for row in rows])[0]
        for moment, latest in metrics.latest_before.items():
            metrics.latest_before[moment] = float(np.max(times[times < moment], initial=latest))
    return metrics


def read_columns(path: Path, names: Iterable[str] | None = None) -> dict[str, Column]:
    """Read all values of some scalars, or of all if None, by name.

    Raises:
        OSError: the file cannot be read.
    """
    wanted = None if names is None else list(names)
    parts: dict[str, list[Column]] = {name: [] for name in wanted or ()}
    for rows in _row_blocks(path):
        for name, column in _columns(rows, wanted).items():
            parts.setdefault(name, []).append(column)
    none = Column(np.empty(0, np.int64), np.empty(0), np.empty(0))
    return {
        name: Column(
            np.concatenate([none.steps, *(part.steps for part in found)]),
            np.concatenate([none.times, *(part.times for part in found)]),
            np.concatenate([none.values, *(part.values for part in found)]),
        )
        for name, found in parts.items()
    }


def _row_blocks(path: Path) -> Iterator[list[Row]]:
    """The rows of a file as it is now, some thousand at a time."""
    if not path.exists():
        return
    size = path.stat().st_size
    large = announcing(f"reading {path}, {size / 1e6:,.0f} MB", partial(print, file=sys.stderr, flush=True))
    with open(path, "rb") as file, large if size > _LARGE_BYTES else nullcontext():
        for block in blocks(file):
            if rows := read_rows(block):
                yield rows
            if file.tell() >= size:  # a run may be writing to it
                return


def _columns(rows: Sequence[Row], names: Iterable[str] | None = None) -> dict[str, Column]:
    """The scalars of some rows, or some of them."""
    steps = np.array([row["step"] for row in rows])
    times = np.full(len(rows), math.nan)
    found, places = _numbers([row.get("time") for row in rows])
    times[places] = found
    columns = {}
    for name in dict.fromkeys(chain.from_iterable(rows)) if names is None else names:
        if name not in ("step", "time"):
            values, places = _numbers([row.get(name, _MISSING) for row in rows])
            if len(values):
                columns[name] = Column(steps[places], times[places], values)
    return columns


def _numbers(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray | slice]:
    """The numbers of a list, with null as NaN, and their places in it."""
    kinds = set(map(type, values))
    if kinds <= _SCALAR:
        return np.array(values, np.float64), slice(None)
    places = [place for place, value in enumerate(values) if type(value) in _SCALAR]
    return np.array([values[place] for place in places], np.float64), np.array(places, np.int64)


def _extremes(values: np.ndarray) -> tuple[int, int]:
    """The places of the lowest and the highest value; of equal values the first one."""
    if np.isnan(values).all():
        return len(values) - 1, len(values) - 1
    return int(np.nanargmin(values)), int(np.nanargmax(values))


def _pair(column: Column, place: int) -> tuple[float, int]:
    return float(column.values[place]), int(column.steps[place])
