"""`prototrain run --workers N`: run the same command in several processes."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

from prototrain.commands.arguments import confirm
from prototrain.errors import ConfigError

OPTIONS = ("cluster", "gpus_per_worker", "max_restarts", "min_workers", "stall_timeout")
_TRAINER = "prototrain.trainers.multi_worker:MultiWorkerTrainer"


def start_workers(options: argparse.Namespace) -> None:
    """Run the command with these options in several processes."""
    from prototrain.distributed.ray import run

    if options.model is None and options.repeats is None:
        options.wrong_usage("the following arguments are required: model, or --from EXPERIMENT")
    for name in ("debug", "towers", "fast_dev_run"):
        if getattr(options, name):
            options.wrong_usage(f"--{name.replace('_', '-')} cannot be used with --workers")
    if options.min_workers is not None and options.min_workers > options.workers:
        options.wrong_usage(f"--min-workers {options.min_workers} is more than --workers {options.workers}")
    what = options.repeats or options.model
    if options.fresh and not options.yes and not confirm(f"delete what earlier runs of {what} have left?"):
        raise ConfigError("nothing was deleted, so there is no fresh start")
    chosen = {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    if (seconds := chosen.pop("stall_timeout", None)) is not None:
        options.set.append(f"trainer.stall_timeout={seconds}")
    cluster = chosen.pop("cluster", None) or os.environ.get("RAY_ADDRESS") or None
    of_worker = {**vars(options), "workers": None, "yes": True, "is_worker": True, **dict.fromkeys(OPTIONS)}
    of_worker["trainer"] = options.trainer or _TRAINER
    # The functions that the parser has set cannot be sent to a worker.
    of_worker = {name: value for name, value in of_worker.items() if not callable(value)}
    run(partial(_work, of_worker), workers=options.workers, cluster=cluster, **chosen)


def check_trainer(trainer: type[Any]) -> None:
    """Check that a trainer class is made for several workers."""
    from prototrain.trainers.multi_worker import MultiWorkerTrainer

    if not issubclass(trainer, MultiWorkerTrainer):
        raise ConfigError(f"--workers: {trainer.__name__} is for one process; derive it from MultiWorkerTrainer")


def _work(options: dict[str, Any]) -> None:
    from prototrain.commands import run as command

    command._run(argparse.Namespace(**options))
