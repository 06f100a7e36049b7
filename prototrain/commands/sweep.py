"""`prototrain sweep`: run a model many times with different config values."""

from __future__ import annotations

import argparse
from typing import Any

from prototrain.commands.arguments import add_model, given, key_of, number, option, override, whole
from prototrain.commands.run import reference, trainer_class
from prototrain.errors import SweepError
from prototrain.sweeps.space import FORMS, parse_space
from prototrain.system.terminal import import_tensorflow


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
    several: dict[str, Any] = {"type": override, "nargs": "+", "action": "extend"}
    option(space, "--grid KEY=V1,V2", "run every combination", **several)
    option(space, "--search KEY=SPACE", f"sample from {FORMS}", **several)
    option(sweep, "--trials N", "how many to sample in all, with --search", type=whole)
    option(sweep, "--objective SCALAR", "how good a trial is (default: %(default)s)", default="vld/loss")
    sweep.add_argument("--mode", choices=("min", "max"), default="min", help="which is better (default: %(default)s)")
    option(sweep, "--jobs J", "trials at the same time (default: 1)", type=whole, default=1)
    storage = "a database that machines share, or the path of a journal file (default: NAME.sweep.db, of SQLite)"
    option(sweep, "--storage URL", storage)
    pruning = "ends bad trials early (default: median with --search, none with --grid)"
    sweep.add_argument("--pruner", choices=("none", "median", "halving", "hyperband"), help=pruning)
    option(sweep, "--cluster ADDRESS", "run the trials on this Ray cluster, J at a time (needs the extra ray)")
    share = number(float, 0)
    option(sweep, "--cpus-per-trial C", "of the cluster's account (default: 1)", type=share, default=1.0)
    option(sweep, "--gpus-per-trial G", "also a part of one, such as 0.5 (default: 0)", type=share, default=0.0)
    option(sweep, "--trainer MODULE:CLASS", "as for prototrain run", type=reference)
    option(sweep, "--towers N|NAMES", "as for prototrain run, of each trial")
    sweep.set_defaults(command=_sweep, wrong_usage=sweep.error)


def _sweep(options: argparse.Namespace) -> None:
    if options.search and options.trials is None:
        options.wrong_usage("--search needs --trials N: how many to sample")
    if options.grid and options.trials is not None:
        options.wrong_usage("--trials is for --search; --grid runs every combination")
    varied, given_once = (set(map(key_of, texts)) for texts in (options.search or options.grid, options.set))
    if twice := varied & given_once:
        options.wrong_usage(f"{min(twice)} is set by -s and varied by the sweep; leave out one of them")
    space = parse_space(options.search or options.grid, is_grid=options.search is None)
    import_tensorflow()
    if options.trainer:
        trainer_class(options.trainer)  # finds mistakes before the first trial
    from prototrain.sweeps.api import sweep

    names = ("trials", "objective", "mode", "jobs", "storage", "pruner", "trainer", "towers", "cluster")
    chosen = {name: getattr(options, name) for name in (*names, "cpus_per_trial", "gpus_per_trial")}
    result = sweep(options.model, space, overrides=given(options), **chosen)
    if failed := [str(trial.number) for trial in result.trials if trial.state == "failed"]:
        raise SweepError(f"{len(failed)} of {len(result.trials)} trials failed: {', '.join(failed)}; see above")
