"""A run that has been, and of which there is no checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prototrain.errors import CheckpointError
from prototrain.experiment.past import read_past
from prototrain.system.wording import FRESH

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


def check_past(trainer: Trainer) -> None:
    """Before a run begins at step 0, say what is lost by it.

    Raises:
        CheckpointError: there have been checkpoints.
    """
    experiment = trainer.require_experiment("resuming")
    past = read_past(experiment.record, experiment.metrics)
    if past is None:
        return
    if past.has_saved:
        raise CheckpointError(
            f"{experiment} has been a run of {past.steps} steps, but its checkpoints are gone from "
            f"{experiment.checkpoints}; put one back, start anew with {FRESH}, or take another directory"
        )
    came = f"came to step {past.steps}" if past.steps else "was killed"
    rows = "; its rows in metrics.jsonl are superseded" if experiment.metrics.exists() else ""
    trainer.log(f"WARNING: the attempt before {came} and left no checkpoint: the run begins again at step 0{rows}")
