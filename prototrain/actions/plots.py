"""A curve with a mark on it, drawn with matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prototrain.errors import ExperimentError
from prototrain.runs.curves import FORMATS
from prototrain.system.files import write_atomic
from prototrain.system.terminal import say


def add_plot(parser: ArgumentParser, default: str) -> None:
    """Declare ``-o``, which `write_plot` takes."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=_picture,
        default=Path(default),
        help=f"the plot; ends in .{', .'.join(FORMATS)}; default: %(default)s",
    )


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix[1:].lower() not in FORMATS:
        raise ArgumentTypeError(f"{text!r} must end in .{', .'.join(FORMATS)}")
    return path


def write_plot(
    path: Path, points: Sequence[tuple[float, float]], mark: tuple[float, float], label: str, *, axes: tuple[str, str]
) -> None:
    """Draw a curve over a logarithmic axis, and say where the picture is; where matplotlib is not, say so.

    Args:
        path: of the picture.
        points: of the curve.
        mark: a point on it.
        label: what the mark means.
        axes: what is written on the axes.

    Raises:
        ExperimentError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        say("no plot: it is drawn with matplotlib; pip install 'prototrain[plot]'")
        return
    figure: Any = Figure(figsize=(8.0, 4.0), layout="constrained")  # without pyplot there is no window
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
