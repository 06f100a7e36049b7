"""Curves of scalars over the steps or the time, drawn with matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prototrain.errors import ExperimentError
from prototrain.runs import Run
from prototrain.runs.shown import Line, Look, by_tag, lines, unit_for
from prototrain.system.terminal import one_line
from prototrain.system.wording import matching

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend
    from matplotlib.ticker import Formatter

FORMATS = ("pdf", "png", "svg")
_STYLES = ("-", "--", ":", "-.")
# Names may hold a $; a picture of the same curves is the same file.
_SETTINGS: dict[Any, Any] = {"text.parse_math": False, "svg.hashsalt": "prototrain"}
_METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "png": {}, "svg": {"Date": None}}
_PLAIN = Look()


def choose_scalars(runs: Sequence[Run], patterns: Sequence[str]) -> list[str]:
    """The scalars that names and patterns with ``*`` mean; of the patterns, some of the runs may have none.

    Raises:
        ExperimentError: a run has none of a name, or no run has any of a pattern; the message names those that it has.
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


def draw(
    runs: Sequence[Run], names: Sequence[str], file_format: str, look: Look = _PLAIN, *, columns: int = 1
) -> bytes:
    """Draw scalars of runs, those of one tag in one chart.

    Args:
        runs: some of which have these scalars.
        names: of the scalars.
        file_format: one of `FORMATS`.
        look: of the curves.
        columns: how many charts stand beside each other; if there are several, the charts are small.

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
    columns = min(columns, len(charts))
    count = math.ceil(len(charts) / columns)
    file = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS):
        # Without pyplot there is no window and nothing global.
        width, height = (8.0, 3.2) if columns == 1 else (3.6 * columns, 2.5)
        figure = Figure(figsize=(width, height * count), layout="constrained")
        all_axes = list(figure.subplots(count, columns, squeeze=False).flat)
        legends = []
        for axes, (tag, of_chart) in zip(all_axes, charts.items(), strict=False):
            left_out = _draw_chart(axes, of_chart, runs, found, look, unit)
            legends += _label(axes, tag, of_chart, left_out, is_small=columns > 1)
        for axes in all_axes[len(charts) :]:
            axes.remove()
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
        what cannot be shown on its axis, in words.
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


def _label(axes: Axes, tag: str, names: Sequence[str], left_out: str, *, is_small: bool) -> list[Legend]:
    """Say what the curves are; the legends that lie outside of the charts are returned."""
    if not is_small:
        axes.set_ylabel(one_line(tag) + left_out)
        legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
        legend.set_in_layout(False)
        return [legend]
    axes.set_title(one_line(names[0] if len(names) == 1 else tag) + left_out, loc="left", fontsize="small")
    axes.tick_params(labelsize="x-small")
    axes.xaxis.label.set_fontsize("x-small")
    if len(names) > 1:
        axes.legend(fontsize="x-small", framealpha=0.6)
    return []


def _plain_numbers() -> Formatter:
    """What labels a logarithmic axis: the usual one writes powers as formulas, which are switched off for names."""
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
