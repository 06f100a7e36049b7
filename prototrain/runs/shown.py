"""Curves as they are to be shown: over steps or over time, as they are or smoothed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from prototrain.runs.reading import Run
from prototrain.runs.series import Series


@dataclass(frozen=True, kw_only=True)
class Look:
    """How curves are to look.

    Attributes:
        log: whether the values have a logarithmic axis.
        smooth: how much of a smoothed value is the one before, at least 0 and less than 1; 0 for no smoothing.
        over_time: whether they are drawn over the time that the run took, not over its steps.
    """

    log: bool = False
    smooth: float = 0.0
    over_time: bool = False


@dataclass(frozen=True)
class Line:
    """A scalar of a run.

    Attributes:
        xs: steps, or seconds.
        values: at each of them.
        smoothed: (xs, values) of the smoothed line, if one is wanted.
    """

    xs: Sequence[float]
    values: Sequence[float]
    smoothed: tuple[Sequence[float], Sequence[float]] | None = None


def lines(run: Run, names: Sequence[str], look: Look) -> dict[str, Line]:
    """Those of a run's scalars that it has, by name.

    Only what smoothing or the time needs is read from the file again, row by row.

    Raises:
        ExperimentError: the file cannot be read.
    """
    names = [name for name in names if name in run.curves]
    smoothed: dict[str, Series] = {}
    times = Series()
    if look.smooth or look.over_time:
        smoothed, times = _read(run, names, look.smooth)
    found = {}
    for name in names:
        steps, values = zip(*run.curves[name], strict=True)
        xs = _seconds(run, times, steps) if look.over_time else steps
        smooth = None
        if look.smooth:
            smooth_steps, smooth_values = zip(*smoothed[name].curve, strict=True)
            smooth = (_seconds(run, times, smooth_steps) if look.over_time else smooth_steps, smooth_values)
        found[name] = Line(xs, values, smooth)
    return found


def _read(run: Run, names: Sequence[str], weight: float) -> tuple[dict[str, Series], Series]:
    """The smoothed scalars, and the time over the steps; of many values, as few as show the same."""
    smoothed = {name: Series() for name in names}
    means = {name: Mean(weight) for name in names}
    times = Series()
    for step, time, values in run.rows(names):
        for name, value in values.items():
            smoothed[name].extend([step], [means[name].take(value)])
        if math.isfinite(time):
            times.extend([step], [time])
    return smoothed, times


class Mean:
    """A moving average whose first values are not drawn towards zero; what is not finite is left out of it.

    Args:
        weight: how much of it is the average before.
    """

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._sum = self._weights = 0.0

    def take(self, value: float) -> float:
        """The average with a further value; NaN if there has been no finite one."""
        if math.isfinite(value):
            self._sum = self._weight * self._sum + (1 - self._weight) * value
            self._weights = self._weight * self._weights + 1 - self._weight
        return self._sum / self._weights if self._weights else math.nan


def _seconds(run: Run, times: Series, steps: Sequence[float]) -> list[float]:
    """How long the run had taken at some steps, without what lies between its attempts."""
    known = times.curve
    if not known:
        return [math.nan] * len(steps)
    places = [step for step, _ in known]
    found = []
    for step in steps:
        after = bisect_right(places, step)
        moment = known[min(after, len(known) - 1)][1]
        if 0 < after < len(known):
            (low, first), (high, _) = known[after - 1 : after + 1]
            moment = first + (step - low) / (high - low) * (moment - first)
        # Where nothing is known of attempts, it began with its first row.
        found.append(run.elapsed(moment) if run.attempts else moment - known[0][1])
    return found


def is_constant(runs: Sequence[Run], names: Sequence[str]) -> bool:
    """Whether a chart of some scalars would show nothing but level lines."""
    ranges = [run.ranges[name] for run in runs for name in names if name in run.ranges]
    return all(found.lowest[0] == found.highest[0] or math.isnan(found.lowest[0]) for found in ranges)


def by_tag(names: Sequence[str]) -> dict[str, list[str]]:
    """Put the scalars together that share a chart: those that differ in what stands before the first slash."""
    groups: dict[str, list[str]] = {}
    for name in names:
        prefix, slash, tag = name.partition("/")
        groups.setdefault(tag if slash else prefix, []).append(name)
    return groups


def unit_for(seconds: float) -> tuple[float, str]:
    """The unit, in seconds and by its name, in which a time is to be told."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 3 * unit:
            return unit, name
    return 1.0, "seconds"
