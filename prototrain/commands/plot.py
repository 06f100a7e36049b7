"""`prototrain plot`: curves of scalars, of one run or several."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from prototrain.errors import ExperimentError
from prototrain.runs import read_run
from prototrain.runs.curves import FORMATS, draw, require_scalars
from prototrain.system.files import write_atomic
from prototrain.system.terminal import say


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    plot = commands.add_parser(
        "plot",
        help="draw curves of scalars, of one run or several (needs the extra plot)",
        description="Draw curves of scalars over the steps. Scalars such as trn/loss and vld/loss share a chart.",
    )
    plot.add_argument("experiments", metavar="EXPERIMENT", nargs="+", help="an experiment's directory")
    plot.add_argument("--scalar", metavar="NAME", action="append", required=True, help="such as vld/loss; repeatable")
    plot.add_argument(
        "-o", "--output", metavar="FILE", type=_picture, required=True, help=f"ends in .{', .'.join(FORMATS)}"
    )
    plot.set_defaults(command=_plot)


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix[1:].lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} must end in .{', .'.join(FORMATS)}")
    return path


def _plot(options: argparse.Namespace) -> None:
    runs = [read_run(directory) for directory in options.experiments]
    names = list(dict.fromkeys(options.scalar))
    require_scalars(runs, names)
    write_result(options.output, draw(runs, names, options.output.suffix[1:].lower()))


def write_result(path: Path, content: str | bytes) -> None:
    """Write a command's result, and say where it is.

    Raises:
        ExperimentError: it cannot be written.
    """
    try:
        write_atomic(path, content)
    except OSError as error:
        raise ExperimentError(f"cannot write {path}: {error.strerror}") from error
    say(path)
