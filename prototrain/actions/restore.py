"""Restoring a trained model from a checkpoint."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

from prototrain.checkpoint.store import META, Checkpoint, Checkpoints, verify
from prototrain.checkpoint.weights import best_checkpoint
from prototrain.errors import CheckpointError
from prototrain.experiment import Experiment
from prototrain.experiment.facts import changes as changes_since
from prototrain.experiment.remote import fetched
from prototrain.model import ModelProtocol
from prototrain.model.built import BuiltModel


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A model with the weights of a checkpoint.

    Attributes:
        built: the built model with its datasets and variables.
        experiment: the run that wrote the checkpoint.
        averaged: whether the weights are the moving averages of `ExponentialMovingAverage`.
        changes: descriptions of the changes to config and sources since the checkpoint was written.
    """

    built: BuiltModel
    checkpoint: Checkpoint
    experiment: Experiment
    averaged: bool
    changes: list[str]

    def describe(self) -> dict[str, str]:
        """Return the rows of the table that an action prints first."""
        found = {
            "model": self.built.name,
            "checkpoint": str(self.checkpoint.path),
            "weights": "moving averages" if self.averaged else "as trained",
        }
        return {**found, "changed since": "; ".join(self.changes)} if self.changes else found


def add_checkpoint(parser: ArgumentParser) -> None:
    """Add the argument ``--checkpoint`` for `restore`."""
    which = "a step, the best one that MinSaver or MaxSaver kept, or the directory of a checkpoint or an experiment"
    newest = "default: the newest of the config's experiment"
    parser.add_argument("--checkpoint", metavar="STEP|best|PATH", help=f"{which}; {newest}")


def restore(model: ModelProtocol, checkpoint: str | None = None) -> Restored:
    """Build a model and load the weights of a checkpoint, or their moving averages if it has them.

    Args:
        model: the result of `load_model`.
        checkpoint: a step, "best" (see `MinSaver`), or the directory of a checkpoint or an experiment. None for the
            newest of the config's experiment.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged or belongs to another run or another model.
    """
    path = _find(model, checkpoint)
    own = path.parent.name == "checkpoints"
    experiment = Experiment(path.parent.parent) if own else Experiment.from_config(model.config)
    found = verify(path, run_id=experiment.run_id if own else None)
    built = BuiltModel(model)
    then, now = found.meta["facts"], built.facts()
    sources = {name: digest for name, digest in then["sources"].items() if name in now["sources"]}
    changes = changes_since({"config": then["config"], "sources": sources}, now)
    changes = [line for line in changes if not line.startswith("trainer.")]  # trainer keys do not affect the weights
    cure = f"since it was written, {'; '.join(changes)}" if changes else "name another one with --checkpoint"
    averaged = built.restore_weights(found, cure=cure)
    return Restored(built=built, checkpoint=found, experiment=experiment, averaged=averaged, changes=changes)


def _find(model: ModelProtocol, checkpoint: str | None) -> Path:
    """Return the path of a checkpoint; see `restore`."""
    experiment = Experiment.from_config(model.config)
    if checkpoint is not None and not checkpoint.isdecimal() and checkpoint != "best":
        path = Experiment(fetched(checkpoint)).directory  # Experiment() checks the name
        if (path / META).is_file():
            return path if path.parent.name == "checkpoints" else path.absolute()
        experiment, checkpoint = Experiment(path), None
    experiment.fetch(whole=True)
    checkpoints = Checkpoints(experiment.checkpoints)
    steps = checkpoints.steps()
    if not steps:
        cure = "train the model first, or name a checkpoint of another experiment with --checkpoint PATH"
        raise CheckpointError(f"there is no checkpoint in {experiment} yet; {cure}")
    if checkpoint == "best":
        return best_checkpoint(experiment)
    step = steps[-1] if checkpoint is None else int(checkpoint)
    if step not in steps:
        raise CheckpointError(f"{experiment} has no checkpoint of step {step}; there are {', '.join(map(str, steps))}")
    return checkpoints.path(step)
