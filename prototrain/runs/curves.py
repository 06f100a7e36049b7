"""Curves of scalars over the steps, drawn with matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
import math
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prototrain.errors import ExperimentError
from prototrain.runs import Run
from prototrain.system.terminal import matching, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("pdf", "png", "svg")
_GROUPS = 2048  # groups of neighboring points, more than the columns of a picture
_STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True, kw_only=True)
class Look:
    """The look of curves."""

    log: bool = False  # a logarithmic axis of values
    smooth: float = 0.0  # the weight of the previous average in a moving average, at least 0 and less than 1


PLAIN = Look()


@dataclass(frozen=True)
class Curve:
    """A curve in a chart.

    Attributes:
        label: the label in the legend.
        color, dash: the numbers of its color and its line style. With several runs, each run has a color and each
            scalar a line style. With a single run, each scalar has a color.
        pale: whether it shows the raw values behind their moving average.
        xs, ys: the steps and the values.
    """

    label: str
    color: int
    dash: int
    pale: bool
    xs: Sequence[float]
    ys: Sequence[float]


def picture_path(text: str) -> Path:
    """Parse the path of a picture, for argparse."""
    path = Path(text)
    if path.suffix[1:].lower() not in FORMATS:
        raise ArgumentTypeError(f"{text!r} must end in .{', .'.join(FORMATS)}")
    return path


def charts(runs: Sequence[Run], names: Sequence[str], look: Look = PLAIN) -> dict[str, list[Curve]]:
    """Return the curves of scalars, with a few thousand points each, by the title of their chart."""
    several, found = len(runs) > 1, {}
    for tag, of_chart in by_tag(names).items():
        curves = []
        for number, run in enumerate(runs):
            for index, name in enumerate(of_chart):
                if name not in run.ranges:
                    continue
                xs, ys = map(list, zip(*run.scalars[name], strict=True))
                label, style = (f"{run.name} {name}", (number, index)) if several else (name, (index, 0))
                if look.smooth:
                    curves.append(Curve(f"{label}, raw", *style, True, *_picked(xs, ys)))
                    ys = list(moving_average(ys, look.smooth))
                curves.append(Curve(label, *style, False, *_picked(xs, ys)))
        found[of_chart[0] if len(of_chart) == 1 else tag] = curves
    return found


def _picked(xs: Sequence[float], values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the points to draw: the lowest and the highest of each group of neighbors, which keeps every peak.

    A group without finite values becomes a gap.
    """
    if len(values) <= 2 * _GROUPS:
        return xs, values
    length = -(-len(values) // _GROUPS)
    places = {0, len(values) - 1}
    for start in range(0, len(values), length):
        group = [(value, place) for place, value in enumerate(values[start : start + length], start)]
        finite = [pair for pair in group if math.isfinite(pair[0])] or group[:1]
        places |= {min(finite)[1], max(finite)[1]}
    return [xs[place] for place in sorted(places)], [values[place] for place in sorted(places)]


def moving_average(values: Sequence[float], weight: float) -> Iterator[float]:
    """Yield a moving average that is not biased towards zero at the start. It ignores values that are not finite."""
    total = weights = 0.0
    for value in values:
        if math.isfinite(value):
            total = weight * total + (1 - weight) * value
            weights = weight * weights + 1 - weight
        yield total / weights if weights else math.nan


def by_tag(names: Sequence[str]) -> dict[str, list[str]]:
    """Group the scalars that share a chart, whose names differ only before the first slash."""
    groups: dict[str, list[str]] = {}
    for name in names:
        prefix, slash, tag = name.partition("/")
        groups.setdefault(tag if slash else prefix, []).append(name)
    return groups


def choose_scalars(runs: Sequence[Run], patterns: Sequence[str]) -> list[str]:
    """Expand names, which each run must have, and patterns with ``*``, for which one run must have a scalar."""
    known = list(dict.fromkeys(name for run in runs for name in run.ranges))
    for run in runs:
        if not run.ranges:
            raise ExperimentError(
                f"{run.name} has no scalars yet: there is nothing in {run.directory / 'metrics.jsonl'}"
            )
        for name in patterns:
            if name not in run.ranges and not set("*?[") & set(name):
                raise ExperimentError(f"{run.name} has no scalar {name!r}; it has: {', '.join(run.ranges)}")
    for pattern in patterns:
        if not matching(known, [pattern]):
            raise ExperimentError(f"there is no scalar like {pattern!r}; there are: {', '.join(known)}")
    return matching(known, patterns)


def draw(runs: Sequence[Run], names: Sequence[str], file_format: str, look: Look = PLAIN) -> bytes:
    """Draw scalars of runs, with one chart per tag; returns the content of a file in one of the `FORMATS`."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ExperimentError("curves are drawn with matplotlib; pip install 'prototrain[plot]'") from error
    found = charts(runs, names, look)
    # Without pyplot, there is no window and no global state.
    figure = Figure(figsize=(8.0, 3.2 * len(found)), layout="constrained")
    legends = []
    for axes, (title, curves) in zip(figure.subplots(len(found), 1, squeeze=False).flat, found.items(), strict=True):
        axes.set_ylabel(_plain(title) + _draw_chart(axes, curves, look))
        legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
        legend.set_in_layout(False)
        legends.append(legend)
    file = io.BytesIO()
    # The picture grows with the legends, so that long names do not squeeze the curves.
    figure.savefig(file, format=file_format, dpi=150, bbox_inches="tight", bbox_extra_artists=legends)
    return file.getvalue()


def _plain(name: str) -> str:
    """Escape a name for matplotlib, which treats text between dollar signs as a formula."""
    return one_line(name).replace("$", r"\$")


def _draw_chart(axes: Axes, curves: Sequence[Curve], look: Look) -> str:
    """Draw the curves of a chart; returns a note about values that the axis cannot show, or ""."""
    for curve in curves:
        axes.plot(
            curve.xs,
            curve.ys,
            color=f"C{curve.color}",
            # matplotlib has ten colors; a curve with the color of an earlier one has another style.
            linestyle=_STYLES[(curve.dash + curve.color // 10) % len(_STYLES)],
            marker="o" if len(curve.xs) == 1 else None,
            alpha=0.25 if curve.pale else 1.0,
            linewidth=0.8 if curve.pale else 1.5,
            # matplotlib hides labels that begin with an underscore.
            label=None if curve.pale else " " + _plain(curve.label),
        )
    axes.set_xlabel("step")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    is_log, note = log_scale(curves, look)
    if is_log:
        axes.set_yscale("log", nonpositive="mask")
    return note


def log_scale(curves: Sequence[Curve], look: Look) -> tuple[bool, str]:
    """Return whether a chart has a logarithmic axis, and a note about values that it cannot show, or ""."""
    values = [value for curve in curves if curve.pale or not look.smooth for value in curve.ys]
    below = sum(value <= 0 for value in values)
    if look.log and any(value > 0 for value in values):
        return True, f" ({below} not above 0 left out)" if below else ""
    return False, " (none above 0)" if look.log and below else ""
