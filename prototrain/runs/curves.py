"""Curves of scalars over the steps, drawn with matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prototrain.errors import ExperimentError
from prototrain.runs import Run
from prototrain.system.terminal import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

FORMATS = ("pdf", "png", "svg")
_STYLES = ("-", "--", ":", "-.")
# Names may hold a $; a picture of the same curves is the same file.
_SETTINGS: dict[Any, Any] = {"text.parse_math": False, "svg.hashsalt": "prototrain"}
_METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "png": {}, "svg": {"Date": None}}


def require_scalars(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Check that all runs have these scalars.

    Raises:
        ExperimentError: one has not; the message names those that it has.
    """
    for run in runs:
        if not run.ranges:
            raise ExperimentError(
                f"{run.name} has no scalars yet: there is nothing in {run.directory / 'metrics.jsonl'}"
            )
        for name in names:
            if name not in run.ranges:
                raise ExperimentError(f"{run.name} has no scalar {name!r}; it has: {', '.join(run.ranges)}")


def _by_tag(names: Sequence[str]) -> dict[str, list[str]]:
    """Put the scalars together that share a chart: those that differ in what stands before the first slash."""
    groups: dict[str, list[str]] = {}
    for name in names:
        prefix, slash, tag = name.partition("/")
        groups.setdefault(tag if slash else prefix, []).append(name)
    return groups


def draw(runs: Sequence[Run], names: Sequence[str], file_format: str) -> bytes:
    """Draw scalars of runs, those of one tag in one chart, the charts below each other.

    Args:
        runs: which all have these scalars.
        names: of the scalars.
        file_format: one of `FORMATS`.

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
    charts = _by_tag(names)
    file = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS):
        # Without pyplot there is no window and nothing global.
        figure = Figure(figsize=(8.0, 3.2 * len(charts)), layout="constrained")
        all_axes = figure.subplots(len(charts), squeeze=False)[:, 0]
        legends = [_draw_chart(axes, *chart, runs) for axes, chart in zip(all_axes, charts.items(), strict=True)]
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


def _draw_chart(axes: Axes, tag: str, names: Sequence[str], runs: Sequence[Run]) -> Legend:
    """One chart. Several runs have a colour each, and the scalars of a run line styles; of one run each scalar has a
    colour."""
    count = len(names) if len(runs) == 1 else len(runs)
    for number, run in enumerate(runs):
        for index, name in enumerate(names):
            steps, values = zip(*run.curves[name], strict=True)
            axes.plot(
                steps,
                values,
                color=_colour(index if len(runs) == 1 else number, count),
                linestyle="-" if len(runs) == 1 else _STYLES[index % len(_STYLES)],
                marker="o" if len(steps) == 1 else None,
                # matplotlib leaves labels out that begin with an underscore.
                label=" " + one_line(name if len(runs) == 1 else f"{run.name} {name}"),
            )
    axes.set_xlabel("step")
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel(one_line(tag))
    axes.grid(alpha=0.3)
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
    legend.set_in_layout(False)
    return legend


def _colour(number: int, count: int) -> Any:
    if count <= 10:
        return f"C{number}"
    import matplotlib

    return matplotlib.colormaps["turbo"](number / (count - 1))
