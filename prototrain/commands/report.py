"""`prototrain report`: one HTML page about a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

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
        help="write one HTML page about a run (needs the extra plot)",
        description="Write one self-contained HTML page: curves, scalars, images, config, time, environment, log.",
    )
    report.add_argument("experiment", metavar="EXPERIMENT", help="the experiment's directory")
    report.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: report.html in the experiment")
    report.add_argument(
        "--scalar", metavar="NAME", action="append", help="draw only these, such as 'vld/*'; repeatable (default: all)"
    )
    add_look(report)
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> None:
    run = read_run(options.experiment)
    try:
        page = write_page(
            run, lambda text: say(f"prototrain: {text}", to_stderr=True), scalars=options.scalar, look=look_of(options)
        )
    except OSError as error:
        raise ExperimentError(f"cannot read {error.filename}: {error.strerror}") from error
    write_result(options.output or run.directory / "report.html", page)
    experiment = Experiment(run.directory)
    if options.output is None and experiment.remote is not None:
        say(experiment.keep(run.directory / "report.html"))
