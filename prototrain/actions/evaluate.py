"""Measure every scalar of the model over a whole dataset, or over new data."""

from __future__ import annotations

import json
import math
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.actions.new_data import NewData, add_files, new_data
from prototrain.actions.restore import Restored, add_checkpoint, restore
from prototrain.errors import DataError, ExperimentError, ModelError
from prototrain.model import ModelProtocol
from prototrain.model.evaluation import require_end
from prototrain.system.files import write_atomic
from prototrain.system.tables import Table, plain_table, show
from prototrain.system.terminal import say


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the action takes."""
    add_checkpoint(parser)
    of = parser.add_mutually_exclusive_group()
    of.add_argument("--dataset", metavar="tst|vld|trn", help="default: tst, or vld if there is no tst")
    add_files(parser, of)


def run(model: ModelProtocol, args: Namespace) -> None:
    """Print the mean of each scalar, weighted by the examples in a batch, and write it to ``analysis/``.

    Args:
        model: a trained one.
        args: `checkpoint`, and `dataset` or `files` and `without`.

    Raises:
        CheckpointError: there is no checkpoint that fits.
        DataError: there is no such dataset, or it has no end.
        ModelError: the model has no scalars.
    """
    restored = restore(model, args.checkpoint)
    built = restored.built
    if args.files:
        name = ", ".join(map(str, args.files))
        new = new_data(built, args.files, args.without)
    else:
        name = choose_dataset(built.datasets, args.dataset)
        new = NewData(built.datasets[name], "")
    built.datasets[name] = new.dataset
    with built.stop:
        scalars = built.evaluate(name)
        built.stop.check()
    if not scalars:
        raise ModelError("build() returned no scalars without training, so there is nothing to evaluate")
    examples = built.evaluation(name).examples
    new.check(examples)
    rows = {**restored.describe(), "dataset": f"{name}, {examples:,} examples"}
    rows |= {"prepared": new.how} if new.how else {}
    show(plain_table(rows), end="\n\n")
    show(Table(list(scalars.items()), ["scalar", name], options={"floatfmt": ".6g"}), end="\n\n")
    say(f"written to {restored.experiment.keep(_keep(restored, name, examples, scalars))}")


def choose_dataset(datasets: dict[str, tf.data.Dataset], wanted: str | None) -> str:
    """The name of a finite dataset: the requested one, else "tst" or "vld".

    Raises:
        DataError: there is no such dataset, or it has no end.
    """
    name = wanted if wanted is not None else next((name for name in ("tst", "vld") if name in datasets), "tst")
    if name not in datasets:
        raise DataError(f"datasets() gives no {name!r}; name one of {', '.join(datasets)} with --dataset")
    require_end(name, datasets[name])
    return name


def _keep(restored: Restored, dataset: str, examples: int, scalars: dict[str, float]) -> Path:
    """Write the result into the file with those of the same checkpoint on other datasets."""
    path = restored.experiment.directory / "analysis" / f"{restored.checkpoint.path.name}-evaluate.json"
    outcome = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **restored.describe(),
        "examples": examples,
        "scalars": {name: value if math.isfinite(value) else None for name, value in scalars.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        others: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["datasets"] if path.exists() else {}
        whole = {"step": restored.checkpoint.step, "datasets": {**others, dataset: outcome}}
        write_atomic(path, json.dumps(whole, indent=2) + "\n")
    except OSError as error:
        raise ExperimentError(f"cannot write {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ExperimentError(f"{path} is damaged; delete it to write it anew") from error
    return path
