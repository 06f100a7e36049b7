"""Plots of actions."""

from __future__ import annotations

import io
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prototrain.errors import ExperimentError
from prototrain.runs.curves import FORMATS, picture_path
from prototrain.system.files import write_atomic
from prototrain.system.terminal import say


def add_plot(parser: ArgumentParser, default: str) -> None:
    """Add the argument ``-o`` for the path of `write_plot`."""
    text = f"the plot; ends in .{', .'.join(FORMATS)}; default: %(default)s"
    parser.add_argument("-o", "--output", metavar="FILE", type=picture_path, default=Path(default), help=text)


def write_plot(
    path: Path, points: Sequence[tuple[float, float]], mark: tuple[float, float], label: str, *, axes: tuple[str, str]
) -> None:
    """Plot (x, y) points with a labelled mark over a logarithmic x axis, and print the path.

    The suffix of the path is the format. Without matplotlib, print how to install it instead.

    Raises:
        ExperimentError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        say("no plot: it is drawn with matplotlib; pip install 'prototrain[plot]'")
        return
    figure: Any = Figure(figsize=(8.0, 4.0), layout="constrained")  # pyplot would open a window
    picture = figure.subplots()
    picture.plot(*zip(*points, strict=True), marker="." if len(points) < 30 else None)
    picture.plot(*mark, "o", color="C3", label=label)
    picture.set_xscale("log")
    picture.set_xlabel(axes[0])
    picture.set_ylabel(axes[1])
    picture.grid(alpha=0.3)
    picture.legend(frameon=False)
    file = io.BytesIO()
    figure.savefig(file, format=path.suffix[1:].lower(), dpi=150)
    try:
        write_atomic(path, file.getvalue())
    except OSError as error:
        raise ExperimentError(f"cannot write {path}: {error.strerror or error}") from error
    say(f"drawn in {path}")
