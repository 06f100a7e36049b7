"""`prototrain run`: train a model, or continue its training."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from prototrain.commands.arguments import (
    add_model,
    check_early,
    confirm,
    early_value,
    given,
    key_of,
    load,
    load_tensorflow,
    number,
    option,
    whole,
)
from prototrain.config.schema import REFERENCE
from prototrain.errors import ConfigError
from prototrain.model import import_user_module
from prototrain.system.signals import ignore_save_signals
from prototrain.system.terminal import did_you_mean, is_terminal

if TYPE_CHECKING:
    from prototrain.runs.repeat import Repeat
    from prototrain.trainers.tower import TowerTrainer


TRAINERS: Final = {
    "simple": "prototrain.trainers.tower:SimpleTrainer",
    "replicated": "prototrain.trainers.replicated:SyncReplicatedTrainer",
    "parameter_server": "prototrain.trainers.replicated:SyncParameterServerTrainer",
    "async": "prototrain.trainers.async_towers:AsyncTrainer",
    "multi_worker": "prototrain.trainers.multi_worker:MultiWorkerTrainer",
}
"""Short names for `--trainer`."""
_OF_WORKERS: Final = ("cluster", "gpus_per_worker", "max_restarts", "min_workers", "stall_timeout")


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    run = commands.add_parser(
        "run",
        help="train a model, or continue its training",
        usage="prototrain run MODEL [options]\n       prototrain run --from EXPERIMENT [options]",
        description="Train a model as its config says. The same command again continues from the newest checkpoint.",
    )
    add_model(run, optional=True)
    repeats = "repeat the run in this directory, with its own config and source, as <name>-repeat"
    option(run, "--from EXPERIMENT", repeats, dest="repeats")
    length = run.add_argument_group("length").add_mutually_exclusive_group()
    length.add_argument("--steps", metavar="N", type=whole, help="train up to step N (model.num_steps)")
    length.add_argument("--epochs", metavar="N", type=whole, help="train for N epochs (model.num_epochs)")
    start = run.add_argument_group("start")
    option(start, "--fresh", "delete the experiment first, after asking")
    option(start, "--yes", "do not ask")
    option(start, "--debug", "open IPython before the first step")
    option(start, "--allow-changed-data", "resume although the training data has changed")
    short = run.add_argument_group("short runs, to try a model out")
    option(short, "--fast-dev-run", "two steps and a validation, in a temporary directory")
    option(short, "--limit-batches N", "train and validate on the first N batches of each pass")
    option(short, "--overfit-batches N", "train and validate on the same N batches")
    devices = run.add_argument_group("devices")
    towers = "N GPUs, named devices (GPU:0,GPU:1) or logical CPU devices (cpu:4); default: all GPUs"
    option(devices, "--towers N|NAMES", towers)
    trainers = f"another trainer: {', '.join(TRAINERS)}, or MODULE:CLASS for your own"
    option(devices, "--trainer NAME", trainers, type=reference)
    workers = run.add_argument_group("several workers")
    option(workers, "--workers N", "start N processes that train together", type=whole)
    option(workers, "--min-workers M", "continue with M if there is no room for N", type=whole)
    option(workers, "--cluster ADDRESS", "a Ray cluster (default: $RAY_ADDRESS, or this machine)")
    option(workers, "--gpus-per-worker G", "give each worker G GPUs", type=number(int, 0))
    restarts = "restart at most R times after a worker is lost (default: 10)"
    option(workers, "--max-restarts R", restarts, type=number(int, 0))
    stalled = "restart after S seconds without a step (default: 1800)"
    option(workers, "--stall-timeout S", stalled, type=number(float, 1))
    run.set_defaults(command=_run, wrong_usage=run.error, is_worker=False)


def reference(text: str) -> str:
    """Return the name of a trainer as `MODULE:CLASS`, for argparse."""
    text = TRAINERS.get(text, text)
    if not REFERENCE.fullmatch(text):
        wrong = f"{text!r} is neither one of {', '.join(TRAINERS)} nor MODULE:CLASS"
        raise argparse.ArgumentTypeError(f"{wrong}{did_you_mean(text, TRAINERS)}")
    return text


def _run(options: argparse.Namespace) -> None:
    for name in ("steps", "epochs"):
        if (count := getattr(options, name)) is not None:
            if {"model.num_steps", "model.num_epochs"} & set(map(key_of, options.set)):
                options.wrong_usage(f"--{name} and -s both set the length; leave one of them out")
            options.set.append(f"model.num_{name}={count}")
    if options.model is not None:
        check_early(options)
    elif options.repeats is None:
        options.wrong_usage("the following arguments are required: model, or --from EXPERIMENT")
    if options.workers is not None:
        _start_workers(options)
        return
    for name in _OF_WORKERS:
        if getattr(options, name) is not None:
            options.wrong_usage(f"--{name.replace('_', '-')} is for several workers: add --workers N")
    with ignore_save_signals(), _shortened(options):
        if options.repeats is not None:
            _repeat(options)
        else:
            _train(options)


def _start_workers(options: argparse.Namespace) -> None:
    """Run the command with these options in several processes."""
    from prototrain.distributed.ray import run

    for name in ("debug", "towers", "fast_dev_run"):
        if getattr(options, name):
            options.wrong_usage(f"--{name.replace('_', '-')} cannot be used with --workers")
    if (options.min_workers or 0) > options.workers:
        options.wrong_usage(f"--min-workers {options.min_workers} is more than --workers {options.workers}")
    what = options.repeats or options.model
    if options.fresh and not options.yes and not confirm(f"delete what earlier runs of {what} have left?"):
        raise ConfigError("--fresh: nothing was deleted, so the run was not started")
    chosen = {name: value for name in _OF_WORKERS if (value := getattr(options, name)) is not None}
    if (seconds := chosen.pop("stall_timeout", None)) is not None:
        options.set.append(f"trainer.stall_timeout={seconds}")
    cluster = chosen.pop("cluster", None) or os.environ.get("RAY_ADDRESS") or None
    # The functions that the parser has set cannot be sent to a worker.
    of_worker = {name: value for name, value in vars(options).items() if not callable(value)}
    of_worker |= {"workers": None, "yes": True, "is_worker": True, **dict.fromkeys(_OF_WORKERS)}
    of_worker["trainer"] = options.trainer or TRAINERS["multi_worker"]
    run(partial(_work, of_worker), workers=options.workers, cluster=cluster, **chosen)


def _work(options: dict[str, Any]) -> None:
    _run(argparse.Namespace(**options))


@contextmanager
def _shortened(options: argparse.Namespace) -> Iterator[None]:
    """Set the config keys of the options for short runs, which override those of the command line."""
    for name in ("limit_batches", "overfit_batches"):
        if (batches := getattr(options, name)) is not None:
            options.set.append(f"trainer.{name}={batches}")
    if not options.fast_dev_run:
        yield
        return
    for name in ("fresh", "steps", "epochs", "limit_batches"):
        if getattr(options, name):
            options.wrong_usage(
                f"--fast-dev-run has its own length and directory: leave out --{name.replace('_', '-')}"
            )
    if {"model.num_steps", "model.num_epochs"} & set(map(key_of, options.set)):
        options.wrong_usage("--fast-dev-run makes two steps: leave out the length")
    load_tensorflow()  # before the directory exists, which Ctrl-C could leave behind
    with TemporaryDirectory() as directory:
        values = {"experiment_base_dir": json.dumps(directory), "limit_batches": 2, "validation_batches": 0}
        intervals = ("validation_step", "summary_save", "print", "checkpoint_save")
        values |= dict.fromkeys((f"{name}_interval" for name in intervals), 2)
        options.set += [f"trainer.{name}={value}" for name, value in values.items()] + ["model.num_steps=2"]
        print("fast dev run: two steps and a validation, in a temporary directory")
        yield
    print("fast dev run: completed; its directory is deleted")


def _repeat(options: argparse.Namespace) -> None:
    load_tensorflow()
    from prototrain.runs.copies import imported_from_copies
    from prototrain.runs.repeat import Repeat

    repeat = Repeat(options.repeats, options.model)
    options.model = repeat.model
    if options.trainer is None and not (options.towers and repeat.trainer.startswith("prototrain.")):
        options.trainer, options.towers = repeat.trainer, options.towers or repeat.towers
    with imported_from_copies(repeat.modules):
        trainer = _train(options, repeat)
    if trainer.is_chief and trainer.experiment is not None:
        trainer.log(repeat.compare_metrics(trainer.experiment))


def _train(options: argparse.Namespace, repeat: Repeat | None = None) -> TowerTrainer:
    if options.debug and not is_terminal(sys.stdin):
        raise ConfigError("--debug opens a shell, and there is no terminal to read from; leave it out")
    if options.towers is not None:
        load_tensorflow()
        from prototrain.towers import prepare_devices

        prepare_devices(options.towers)  # before the model is imported, which may start TensorFlow
    keywords: dict[str, Any] = {}
    if options.trainer:
        load_tensorflow()
        keywords["trainer"] = trainer_class(options.trainer, is_worker=options.is_worker)
        # Also before the model is imported.
        keywords["trainer"].prepare(early_value(given(options), "trainer.cluster_timeout"))
    try:
        model = load(options, None if repeat is None else repeat.configure)
        from prototrain.launch import default_callbacks, launch
        from prototrain.sweeps import reporter

        callbacks = default_callbacks(model)
        if repeat is not None:
            repeat.check_directory(model.config, fresh=options.fresh)
            callbacks.append(repeat.announcement())
        if reporter.link is not None:
            callbacks.append(reporter.reporter(reporter.link.report, model.config))
        for name in ("fresh", "debug", "allow_changed_data", "towers"):
            keywords[name] = getattr(options, name)
        return launch(model, callbacks=callbacks, confirm=None if options.yes else confirm, **keywords)
    except Exception as error:
        if "trainer" in keywords:
            keywords["trainer"].report_failure(error)
        raise


def trainer_class(name: str, *, is_worker: bool = False) -> type[TowerTrainer]:
    """Import a trainer class, named as `MODULE:CLASS`."""
    module_name, _, class_name = name.partition(":")
    module = import_user_module(module_name, what="trainer")
    if module is None:
        raise ConfigError(f"--trainer: there is no module {module_name!r} here or among the installed packages")
    found = getattr(module, class_name, None)
    from prototrain.trainers.multi_worker import MultiWorkerTrainer
    from prototrain.trainers.tower import TowerTrainer

    if found is None:
        raise ConfigError(f"--trainer: module {module_name} has no {class_name}")
    if not isinstance(found, type) or not issubclass(found, TowerTrainer):
        raise ConfigError(f"--trainer: {name} is not a subclass of TowerTrainer")
    if is_worker and not issubclass(found, MultiWorkerTrainer):
        raise ConfigError(f"--workers: {class_name} is for one process; derive it from MultiWorkerTrainer")
    return found
