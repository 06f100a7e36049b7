"""What a run says of itself before its first step and after its last."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from prototrain.system.tables import plain_table as plain_table

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_ORDER = ("model", "trainer", "towers", "global batch", "steps", "epochs", "learning rate", "directory", "start")


def opening(trainer: Trainer) -> str:
    """The tables at the start of a run."""
    given = trainer.describe()
    first = [name for name in _ORDER if name in given]
    rows = {name: given[name] for name in dict.fromkeys([*first, *given]) if given[name] is not None}
    return "\n\n".join([plain_table(rows), *trainer.describe_more()]) + "\n"


def closing(trainer: Trainer) -> str | None:
    """Where everything of the run lies, or None if it left nothing."""
    experiment = trainer.experiment
    if experiment is None or not experiment.exists():
        return None
    rows = {}
    steps = trainer.storage.checkpoints.steps()
    if steps:
        newest = trainer.storage.checkpoints.path(steps[-1])
        rows["checkpoints"] = f"{experiment.checkpoints} (newest: {newest.name})"
    if experiment.metrics.exists():
        rows["metrics"] = str(experiment.metrics)
    rows["log"] = str(experiment.log)
    if experiment.summaries.is_dir():
        rows["look at it"] = f"tensorboard --logdir {shlex.quote(str(experiment.summaries))}"
    return "\n" + plain_table(rows, width=None)
