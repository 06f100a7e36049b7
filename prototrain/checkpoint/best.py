"""The checkpoint that `MinSaver` or `MaxSaver` has kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prototrain.checkpoint.checkpoints import Checkpoints
from prototrain.errors import CheckpointError
from prototrain.experiment import Experiment
from prototrain.experiment.fetching import fetched


def best_of(source: Any) -> Path:
    """The best checkpoint of what somebody has named to take weights from.

    Raises:
        CheckpointError: it is no experiment, or has none.
    """
    experiment = Experiment(fetched(source)) if isinstance(source, str | Path) else None
    if experiment is None or not experiment.exists():
        what = "arrays" if experiment is None else str(source)
        raise CheckpointError(f"load_weights: checkpoint='best' is for an experiment, and {what} is none")
    return best_checkpoint(experiment)


def best_checkpoint(experiment: Experiment) -> Path:
    """Where the best checkpoint of a run lies; what is in it is not looked at.

    Raises:
        CheckpointError: there is none, or there are several; or a note of one is damaged.
    """
    experiment.check_inside()  # before one of them is read
    notes = sorted(path for mode in ("min", "max") for path in experiment.checkpoints.glob(f"{mode}-*.json"))
    found = {}
    for path in notes:
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            found[f"{note['stat']} at step {int(note['step'])}"] = int(note["step"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged; name a step with --checkpoint") from error
    if not found:
        raise CheckpointError(
            f"{experiment} has no best checkpoint: there was no MinSaver or MaxSaver in its callbacks"
        )
    if len(set(found.values())) > 1:
        raise CheckpointError(f"{experiment} has several best checkpoints: {', '.join(found)}; name one by its step")
    return Checkpoints(experiment.checkpoints).path(next(iter(found.values())))
