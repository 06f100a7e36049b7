"""`prototrain sweep`: many runs of a model with different values in its config."""

from __future__ import annotations

import argparse
from typing import Any

from prototrain.commands.arguments import add_model, given
from prototrain.commands.run import reference, trainer_class, whole
from prototrain.errors import SweepError
from prototrain.sweeps.space import FORMS, parse_grid, parse_search
from prototrain.system.quiet import import_tensorflow


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    sweep = commands.add_parser(
        "sweep",
        help="train a model with many combinations of values (needs the extra sweep)",
        description="Train a model with many combinations of values, each in an experiment NAME-NUMBER. The same "
        "command again continues where the last one ended, and may run on other machines at the same time.",
    )
    add_model(sweep)
    space = sweep.add_mutually_exclusive_group(required=True)
    space.add_argument("--grid", metavar="KEY=V1,V2", nargs="+", action="extend", help="run every combination")
    space.add_argument("--search", metavar="KEY=SPACE", nargs="+", action="extend", help=f"sample from {FORMS}")
    sweep.add_argument("--trials", metavar="N", type=whole, help="how many to sample in all, with --search")
    sweep.add_argument(
        "--objective", metavar="SCALAR", default="vld/loss", help="how good a trial is (default: %(default)s)"
    )
    sweep.add_argument("--mode", choices=("min", "max"), default="min", help="which is better (default: %(default)s)")
    sweep.add_argument("--jobs", metavar="J", type=whole, default=1, help="trials at the same time (default: 1)")
    sweep.add_argument(
        "--storage",
        metavar="URL",
        help="a database that machines share, or the path of a journal file (default: NAME.sweep.db, of SQLite)",
    )
    sweep.add_argument(
        "--pruner",
        choices=("none", "median", "halving", "hyperband"),
        help="ends bad trials early (default: median with --search, none with --grid)",
    )
    sweep.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="run the trials on this Ray cluster, J at a time (needs the extra ray)",
    )
    sweep.add_argument("--cpus-per-trial", metavar="C", type=float, help="of the cluster's account (default: 1)")
    sweep.add_argument("--gpus-per-trial", metavar="G", type=float, help="also a part of one, such as 0.5 (default: 0)")
    sweep.add_argument("--trainer", metavar="MODULE:CLASS", type=reference, help="as for prototrain run")
    sweep.add_argument("--towers", metavar="N|NAMES", help="as for prototrain run, of each trial")
    sweep.set_defaults(command=_sweep)


def _sweep(options: argparse.Namespace) -> None:
    if options.search and options.trials is None:
        raise SweepError("--search needs --trials N: how many to sample")
    if options.grid and options.trials is not None:
        raise SweepError("--trials is for --search; --grid runs every combination")
    space = parse_search(options.search) if options.search else parse_grid(options.grid)
    import_tensorflow()
    if options.trainer:
        trainer_class(options.trainer)  # a mistake is better found before the first trial
    from prototrain.sweeps.api import sweep

    result = sweep(
        options.model,
        space,
        trials=options.trials,
        objective=options.objective,
        mode=options.mode,
        jobs=options.jobs,
        storage=options.storage,
        pruner=options.pruner,
        overrides=given(options),
        trainer=options.trainer,
        towers=options.towers,
        cluster=options.cluster,
        cpus_per_trial=options.cpus_per_trial,
        gpus_per_trial=options.gpus_per_trial,
    )
    if failed := [str(trial.number) for trial in result.trials if trial.state == "failed"]:
        raise SweepError(f"{len(failed)} of {len(result.trials)} trials failed: {', '.join(failed)}; see above")
