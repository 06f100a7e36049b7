"""`prototrain plot` and `prototrain report`: curves of scalars as a picture, and an HTML page about runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from prototrain.commands.arguments import number, option
from prototrain.errors import ExperimentError
from prototrain.experiment import Experiment
from prototrain.runs import read_run
from prototrain.runs.curves import FORMATS, Look, choose_scalars, draw, picture_path
from prototrain.runs.report import write_page
from prototrain.system.files import write_atomic
from prototrain.system.terminal import say


def add_plot(commands: Any) -> None:
    """Declare the arguments of `plot`."""
    plot = commands.add_parser(
        "plot",
        help="draw curves of scalars, of one run or several (needs the extra plot)",
        description="Draw curves of scalars. Those such as trn/loss and vld/loss share a chart.",
    )
    option(plot, "--scalar NAME", "such as vld/loss, or 'vld/*'; repeatable", action="append", required=True)
    option(plot, "-o --output FILE", f"ends in .{', .'.join(FORMATS)}", type=picture_path, required=True)
    _add_curves(plot)
    plot.set_defaults(command=_plot)


def add(commands: Any) -> None:
    """Declare the arguments of `report`."""
    report = commands.add_parser(
        "report",
        help="write one HTML page about a run, or about several",
        description="Write one self-contained HTML page: the best value, curves to zoom into, scalars, config, "
        "time, environment, log.",
    )
    option(report, "--scalar NAME", "draw only these, such as 'vld/*'; repeatable (default: all)", action="append")
    option(report, "-o --output FILE", "default: report.html in the experiment; of several, here", type=Path)
    _add_curves(report)
    report.set_defaults(command=_report)


def _add_curves(command: argparse.ArgumentParser) -> None:
    command.add_argument("experiments", metavar="EXPERIMENT", nargs="+", help="an experiment's directory")
    option(command, "--log", "draw values on a logarithmic axis")
    smooth = "draw a moving average with this weight of the value before, 0 to 1, such as 0.9"
    option(command, "--smooth WEIGHT", smooth, type=number(float, 0, 1), default=0.0)


def _plot(options: argparse.Namespace) -> None:
    runs = [read_run(directory) for directory in options.experiments]
    names = choose_scalars(runs, options.scalar)
    look = Look(log=options.log, smooth=options.smooth)
    _write(options.output, draw(runs, names, options.output.suffix[1:].lower(), look))


def _report(options: argparse.Namespace) -> None:
    runs = list({run.directory.resolve(): run for run in map(read_run, options.experiments)}.values())
    try:
        page = write_page(runs, scalars=options.scalar, look=Look(log=options.log, smooth=options.smooth))
    except OSError as error:
        raise ExperimentError(f"cannot read {error.filename}: {error.strerror}") from error
    own = (runs[0].directory if len(runs) == 1 else Path()) / "report.html"
    _write(options.output or own, page)
    experiment = Experiment(runs[0].directory)
    if options.output is None and len(runs) == 1 and experiment.remote is not None:
        say(experiment.keep(own))


def _write(path: Path, content: str | bytes) -> None:
    try:
        write_atomic(path, content)
    except OSError as error:
        raise ExperimentError(f"cannot write {path}: {error.strerror}") from error
    say(path)
