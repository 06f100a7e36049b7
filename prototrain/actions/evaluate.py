"""Measure every scalar of the model over a whole dataset, or over new data."""

from __future__ import annotations

import json
import math
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from prototrain.actions.new_data import add_data, data_of
from prototrain.actions.restore import add_checkpoint, restore
from prototrain.errors import ExperimentError, ModelError
from prototrain.model import ModelProtocol
from prototrain.system.files import write_atomic
from prototrain.system.terminal import Table, plain_table, print_tables, say


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action's arguments to a parser."""
    add_checkpoint(parser)
    add_data(parser)


def run(model: ModelProtocol, args: Namespace) -> None:
    """Print the mean of each scalar over all examples, and write it to the experiment's ``analysis/`` directory."""
    restored = restore(model, args.checkpoint)
    built = restored.built
    data = data_of(built, args)
    name = data.name
    built.datasets[name] = data.dataset
    with built.stop:
        scalars = built.evaluate(name)
        built.stop.check()
    if not scalars:
        raise ModelError(
            "build() returned no scalars without training, so there is nothing to evaluate (has the data labels?)"
        )
    examples = built.evaluation(name).examples
    rows = {**restored.describe(), "dataset": f"{name}, {examples:,} examples"}
    print_tables(plain_table(rows), end="\n\n")
    print_tables(Table(list(scalars.items()), ["scalar", name], number_format=".6g"), end="\n\n")
    path = restored.experiment.directory / "analysis" / f"{restored.checkpoint.path.name}-evaluate.json"
    outcome = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **restored.describe(),
        "examples": examples,
        "scalars": {scalar: value if math.isfinite(value) else None for scalar, value in scalars.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        others: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["datasets"] if path.exists() else {}
        whole = {"step": restored.checkpoint.step, "datasets": {**others, name: outcome}}
        write_atomic(path, json.dumps(whole, indent=2) + "\n")
    except OSError as error:
        raise ExperimentError(f"cannot write {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ExperimentError(f"{path} is damaged; delete it to write it again") from error
    say(f"written to {restored.experiment.keep(path)}")
