"""Curves of scalars over the steps or the time, drawn with matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
import math
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.errors import ExperimentError
from prototrain.runs import Run
from prototrain.system.terminal import one_line
from prototrain.system.wording import matching

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import Formatter

FORMATS = ("pdf", "png", "svg")
_GROUPS = 2048  # of neighbouring points, more than a picture has columns
_STYLES = ("-", "--", ":", "-.")
# Names may hold a $; a picture of the same curves is the same file.
_SETTINGS: dict[Any, Any] = {"text.parse_math": False, "svg.hashsalt": "prototrain"}
_METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "png": {}, "svg": {"Date": None}}


@dataclass(frozen=True, kw_only=True)
class Look:
    """The look of curves.

    Attributes:
        log: whether values have a logarithmic axis.
        smooth: the weight of the average before in a moving average, at least 0 and less than 1; 0: no smoothing.
        over_time: whether the x axis has the elapsed time instead of the steps.
    """

    log: bool = False
    smooth: float = 0.0
    over_time: bool = False


@dataclass(frozen=True)
class Line:
    """A scalar of a run, as it is drawn.

    Attributes:
        xs: steps, or seconds.
        values: at each of them.
        smoothed: (xs, values) of the smoothed line, if requested.
    """

    xs: Sequence[float]
    values: Sequence[float]
    smoothed: tuple[Sequence[float], Sequence[float]] | None = None


_PLAIN = Look()


def picture_path(text: str) -> Path:
    """Parse the path of a picture, for argparse."""
    path = Path(text)
    if path.suffix[1:].lower() not in FORMATS:
        raise ArgumentTypeError(f"{text!r} must end in .{', .'.join(FORMATS)}")
    return path


# -- which points -----------------------------------------------------------------------------------------------------


def lines(run: Run, names: Sequence[str], look: Look = _PLAIN) -> dict[str, Line]:
    """The scalars of a run that it has, by name, with at most some thousand points each.

    Raises:
        ExperimentError: the file cannot be read.
    """
    found = {}
    for name, column in run.columns([name for name in names if name in run.ranges]).items():
        xs = _seconds(run, column.times.tolist()) if look.over_time else column.steps.tolist()
        values = column.values.tolist()
        smoothed = _picked(xs, list(moving_average(values, look.smooth))) if look.smooth else None
        found[name] = Line(*_picked(xs, values), smoothed)
    return found


def _picked(xs: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    places = shown(values)
    return [xs[place] for place in places], [values[place] for place in places]


def _seconds(run: Run, times: Sequence[float]) -> list[float]:
    """How long the run had taken at each time; without any record of attempts it began with its first row."""
    if run.attempts:
        return [run.elapsed(time) if math.isfinite(time) else math.nan for time in times]
    begin = next((time for time in times if math.isfinite(time)), math.nan)
    return [time - begin for time in times]


def shown(values: Sequence[float]) -> list[int]:
    """The places of the points that a picture needs: of every few neighbours the lowest and the highest.

    So no peak is lost. Where no value is finite, there is a gap.
    """
    if len(values) <= 2 * _GROUPS:
        return list(range(len(values)))
    length = -(-len(values) // _GROUPS)
    places = {0, len(values) - 1}
    for start in range(0, len(values), length):
        group = [(value, place) for place, value in enumerate(values[start : start + length], start)]
        finite = [pair for pair in group if math.isfinite(pair[0])] or group[:1]
        places |= {min(finite)[1], max(finite)[1]}
    return sorted(places)


def moving_average(values: Sequence[float], weight: float) -> Iterator[float]:
    """A moving average whose first values are not drawn towards zero; it ignores values that are not finite.

    Args:
        values: to be smoothed.
        weight: of the average before.
    """
    total = weights = 0.0
    for value in values:
        if math.isfinite(value):
            total = weight * total + (1 - weight) * value
            weights = weight * weights + 1 - weight
        yield total / weights if weights else math.nan


def is_constant(runs: Sequence[Run], names: Sequence[str]) -> bool:
    """Whether a chart of some scalars would show level lines only."""
    ranges = [run.ranges[name] for run in runs for name in names if name in run.ranges]
    return all(found.lowest[0] == found.highest[0] or math.isnan(found.lowest[0]) for found in ranges)


def by_tag(names: Sequence[str]) -> dict[str, list[str]]:
    """Group the scalars that share a chart: those that differ only before the first slash."""
    groups: dict[str, list[str]] = {}
    for name in names:
        prefix, slash, tag = name.partition("/")
        groups.setdefault(tag if slash else prefix, []).append(name)
    return groups


def unit_for(seconds: float) -> tuple[float, str]:
    """The unit for a time axis up to so many seconds: its length in seconds, and its name."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 3 * unit:
            return unit, name
    return 1.0, "seconds"


def choose_scalars(runs: Sequence[Run], patterns: Sequence[str]) -> list[str]:
    """Expand names and patterns with ``*``; a run need not have scalars for every pattern.

    Raises:
        ExperimentError: a run lacks a name, or no run has a scalar for a pattern; the message names those that it has.
    """
    for run in runs:
        if not run.ranges:
            raise ExperimentError(
                f"{run.name} has no scalars yet: there is nothing in {run.directory / 'metrics.jsonl'}"
            )
        for name in patterns:
            if name not in run.ranges and not _is_pattern(name):
                raise ExperimentError(f"{run.name} has no scalar {name!r}; it has: {', '.join(run.ranges)}")
    known = list(dict.fromkeys(name for run in runs for name in run.ranges))
    for pattern in patterns:
        if not matching(known, [pattern]):
            raise ExperimentError(f"there is no scalar like {pattern!r}; there are: {', '.join(known)}")
    return matching(known, patterns)


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


# -- drawing ----------------------------------------------------------------------------------------------------------


def draw(runs: Sequence[Run], names: Sequence[str], file_format: str, look: Look = _PLAIN) -> bytes:
    """Draw scalars of runs, with those of one tag in one chart.

    Args:
        runs: each may have some of the scalars.
        names: of the scalars.
        file_format: one of `FORMATS`.
        look: of the curves.

    Returns:
        the content of the file.

    Raises:
        ExperimentError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ExperimentError("curves are drawn with matplotlib; pip install 'prototrain[plot]'") from error
    charts = by_tag(names)
    found = [lines(run, names, look) for run in runs]
    longest = max((x for of_run in found for line in of_run.values() for x in line.xs if math.isfinite(x)), default=0.0)
    unit = unit_for(longest) if look.over_time else (1.0, "step")
    file = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS):
        # Without pyplot there is no window and nothing global.
        figure = Figure(figsize=(8.0, 3.2 * len(charts)), layout="constrained")
        all_axes = list(figure.subplots(len(charts), 1, squeeze=False).flat)
        legends = []
        for axes, (tag, of_chart) in zip(all_axes, charts.items(), strict=True):
            axes.set_ylabel(one_line(tag) + _draw_chart(axes, of_chart, runs, found, look, unit))
            legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
            legend.set_in_layout(False)
            legends.append(legend)
        figure.savefig(
            file,
            format=file_format,
            dpi=150,
            metadata=_METADATA[file_format],
            # The picture grows by the legends: long names must not squeeze the curves.
            bbox_inches="tight",
            bbox_extra_artists=legends,
        )
    return file.getvalue()


def _draw_chart(
    axes: Axes,
    names: Sequence[str],
    runs: Sequence[Run],
    found: Sequence[dict[str, Line]],
    look: Look,
    unit: tuple[float, str],
) -> str:
    """The curves of a chart. Several runs have a colour each, and the scalars of a run line styles; of one run each
    scalar has a colour. Behind a smoothed curve the values themselves are pale.

    Returns:
        a note about values that cannot be shown on the axis, or an empty text.
    """
    count = len(names) if len(runs) == 1 else len(runs)
    for number, run in enumerate(runs):
        for index, name in enumerate(names):
            if name not in found[number]:
                continue
            line = found[number][name]
            colour = _colour(index if len(runs) == 1 else number, count)
            style = "-" if len(runs) == 1 else _STYLES[index % len(_STYLES)]
            # matplotlib leaves labels out that begin with an underscore.
            label = " " + one_line(name if len(runs) == 1 else f"{run.name} {name}")
            curves = [(line.xs, line.values)] if line.smoothed is None else [(line.xs, line.values), line.smoothed]
            for xs, values in curves:
                is_last = values is curves[-1][1]
                axes.plot(
                    [x / unit[0] for x in xs],
                    values,
                    color=colour,
                    linestyle=style,
                    marker="o" if len(xs) == 1 else None,
                    alpha=1.0 if is_last else 0.25,
                    linewidth=1.5 if is_last else 0.8,
                    label=label if is_last else None,
                )
    axes.set_xlabel(unit[1])
    if unit[1] == "step":
        axes.locator_params(axis="x", integer=True)
    values = [value for of_run in found for name in names if name in of_run for value in of_run[name].values]
    axes.grid(alpha=0.3)
    below = sum(value <= 0 for value in values)
    if look.log and any(value > 0 for value in values):
        axes.set_yscale("log", nonpositive="mask")
        for place in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            place(_plain_numbers())
        return f" ({below} not above 0 left out)" if below else ""
    return " (none above 0)" if look.log and below else ""


def _plain_numbers() -> Formatter:
    """Labels for a logarithmic axis: the default writes powers as formulas, which are switched off because of names."""
    from matplotlib.ticker import LogFormatter

    class PlainNumbers(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    return PlainNumbers()


def _colour(number: int, count: int) -> Any:
    if count <= 10:
        return f"C{number}"
    import matplotlib

    return matplotlib.colormaps["turbo"](number / (count - 1))
