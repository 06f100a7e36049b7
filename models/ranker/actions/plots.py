"""Plots of a search, drawn with matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from prototrain.errors import ExperimentError

from .outcome import KS, Outcome
from .retrieval import EDGES, recall_at

_MOST_NUMBERED = 24  # classes whose counts are written into the confusion matrix


def draw_plots(outcome: Outcome) -> dict[str, bytes]:
    """Draw everything.

    Returns:
        the content of PNG files by name: "recall_at_k", "similarities", "confusion".

    Raises:
        ExperimentError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ExperimentError("plots are drawn with matplotlib; pip install 'prototrain[plot]'") from error
    plots = {}
    with matplotlib.rc_context({"text.parse_math": False}):  # a class's name may hold a $
        for draw in (_recall_at_k, _similarities, _confusion):
            figure = Figure(figsize=(6.4, 4.4), layout="constrained")  # without pyplot nothing is global
            draw(figure.add_subplot(), outcome)
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=110)
            plots[draw.__name__.removeprefix("_")] = file.getvalue()
    return plots


def _recall_at_k(axes: Any, outcome: Outcome) -> None:
    most = outcome.retrieved.right.shape[1]
    ks = range(1, most + 1)
    recall = recall_at(ks, outcome.retrieved.right)
    axes.plot(ks, recall)
    marked = [k for k in KS if k <= most]
    axes.plot(marked, [recall[k - 1] for k in marked], "o", color="C0")
    for k in marked:
        place = {"xytext": (0, -14), "textcoords": "offset points", "ha": "right" if k == most else "left"}
        axes.annotate(f"{recall[k - 1]:.3f}", (k, recall[k - 1]), fontsize=8, **place)
    axes.set(xlabel="k", ylabel="recall at k", title="Queries with a right picture among the first k")
    axes.set_ylim(min(recall[0] - 0.1, 0.9), 1.02)
    axes.grid(alpha=0.3)


def _similarities(axes: Any, outcome: Outcome) -> None:
    for counts, label, colour in (
        (outcome.retrieved.negatives, "different products", "C3"),
        (outcome.retrieved.positives, "same product", "C2"),
    ):
        density = counts / max(counts.sum(), 1) / np.diff(EDGES)
        axes.stairs(density, EDGES, label=f"{label}, {counts.sum():,} pairs", color=colour, fill=True, alpha=0.5)
    axes.set(xlabel="cosine similarity", ylabel="density", title="Similarity of a query and a picture")
    axes.legend()


def _confusion(axes: Any, outcome: Outcome) -> None:
    counts, classes = outcome.confusion, outcome.classes
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=8)
    axes.set_yticks(range(len(classes)), classes, fontsize=8)
    axes.set(xlabel="class of what was found first", ylabel="class of the query", title="Classes that are confused")
    if len(classes) <= _MOST_NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, count, ha="center", va="center", fontsize=7, color=colour)
