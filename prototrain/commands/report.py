"""`prototrain report`: write one HTML page about one or several runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from prototrain.commands.arguments import option
from prototrain.commands.plot import add_look, look_of, write_result
from prototrain.errors import ExperimentError
from prototrain.experiment import Experiment
from prototrain.runs import read_run
from prototrain.runs.report import write_page
from prototrain.system.terminal import say


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    report = commands.add_parser(
        "report",
        help="write one HTML page about a run, or about several",
        description="Write one self-contained HTML page: the best value, curves to zoom into, scalars, config, "
        "time, environment, log.",
    )
    report.add_argument("experiments", metavar="EXPERIMENT", nargs="+", help="an experiment's directory, or several")
    option(report, "-o --output FILE", "default: report.html in the experiment; of several, here", type=Path)
    option(report, "--scalar NAME", "draw only these, such as 'vld/*'; repeatable (default: all)", action="append")
    add_look(report)
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> None:
    runs = [read_run(directory) for directory in dict.fromkeys(options.experiments)]
    try:
        page = write_page(runs, scalars=options.scalar, look=look_of(options))
    except OSError as error:
        raise ExperimentError(f"cannot read {error.filename}: {error.strerror}") from error
    own = (runs[0].directory if len(runs) == 1 else Path()) / "report.html"
    write_result(options.output or own, page)
    experiment = Experiment(runs[0].directory)
    if options.output is None and len(runs) == 1 and experiment.remote is not None:
        say(experiment.keep(own))
