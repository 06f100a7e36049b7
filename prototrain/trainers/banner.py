"""What a run says of itself before its first step and after its last."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from prototrain.system.tables import plain_table as plain_table
from prototrain.towers import why_no_gpu

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_ORDER = (
    "model",
    "trainer",
    "towers",
    "devices",
    "global batch",
    "steps",
    "epochs",
    "learning rate",
    "directory",
    "start",
)


def opening(trainer: Trainer) -> str:
    """The tables at the start of a run."""
    given = trainer.describe()
    first = [name for name in _ORDER if name in given]
    rows = {name: given[name] for name in dict.fromkeys([*first, *given]) if given[name] is not None}
    warning = why_no_gpu()
    parts = [plain_table(rows), *([] if warning is None else [warning]), *trainer.describe_more()]
    return "\n\n".join(parts) + "\n"


def describe_run(trainer: Trainer) -> dict[str, Any]:
    """What any trainer says of a run, by name."""
    epochs = f"{-(-trainer.total_steps // trainer.steps_per_epoch)} of {trainer.steps_per_epoch} steps"
    return {
        "trainer": type(trainer).__name__,
        "steps": "until something stops the run" if trainer.is_endless else trainer.total_steps,
        "epochs": None if trainer.is_endless else epochs,
        "directory": trainer.experiment,
        "start": trainer.session.resume_line(),
    }


def closing(trainer: Trainer) -> str | None:
    """Where everything of the run lies, or None if it left nothing."""
    experiment = trainer.experiment
    if experiment is None or not experiment.exists():
        return None
    rows = {}
    checkpoints = trainer.session.checkpoints
    steps = checkpoints.steps()
    if steps:
        rows["checkpoints"] = f"{experiment.shown(experiment.checkpoints)} (newest: {checkpoints.path(steps[-1]).name})"
    if experiment.metrics.exists():
        rows["metrics"] = experiment.shown(experiment.metrics)
    rows["log"] = experiment.shown(experiment.log)
    if experiment.summaries.is_dir():
        rows["look at it"] = f"tensorboard --logdir {shlex.quote(str(experiment.summaries))}"
    return "\n" + plain_table(rows, width=None)
