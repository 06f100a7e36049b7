"""`prototrain plot`: draw curves of scalars of one or several runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from prototrain.commands.arguments import option, real
from prototrain.errors import ExperimentError
from prototrain.runs import read_run
from prototrain.runs.curves import FORMATS, Look, choose_scalars, draw, picture_path
from prototrain.system.files import write_atomic
from prototrain.system.terminal import say


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    plot = commands.add_parser(
        "plot",
        help="draw curves of scalars, of one run or several (needs the extra plot)",
        description="Draw curves of scalars. Those such as trn/loss and vld/loss share a chart.",
    )
    plot.add_argument("experiments", metavar="EXPERIMENT", nargs="+", help="an experiment's directory")
    option(plot, "--scalar NAME", "such as vld/loss, or 'vld/*'; repeatable", action="append", required=True)
    add_look(plot)
    option(plot, "-o --output FILE", f"ends in .{', .'.join(FORMATS)}", type=picture_path, required=True)
    plot.set_defaults(command=_plot)


def add_look(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the look of curves."""
    option(parser, "--log", "draw values on a logarithmic axis")
    option(
        parser,
        "--smooth WEIGHT",
        "draw a moving average with this weight of the value before, 0 to 1, such as 0.9",
        type=real(0, 1, "a number from 0 to below 1"),
        default=0.0,
    )


def look_of(options: argparse.Namespace) -> Look:
    """Return the values of the options that `add_look` declares."""
    return Look(log=options.log, smooth=options.smooth)


def _plot(options: argparse.Namespace) -> None:
    runs = [read_run(directory) for directory in options.experiments]
    names = choose_scalars(runs, options.scalar)
    write_result(options.output, draw(runs, names, options.output.suffix[1:].lower(), look_of(options)))


def write_result(path: Path, content: str | bytes) -> None:
    """Write the result of a command to a file, and print its path."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise ExperimentError(f"cannot write {path}: {error.strerror}") from error
    say(path)
