"""What a run says of itself before its first step and after its last."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

if TYPE_CHECKING:
    from prototrain.experiment import Experiment
    from prototrain.trainers.base import Trainer

_ORDER = ("model", "trainer", "towers", "global batch", "steps", "epochs", "learning rate", "directory", "start")
_WIDTH = 120


def opening(trainer: Trainer) -> str:
    """The tables at the start of a run."""
    given = trainer.describe()
    first = [name for name in _ORDER if name in given]
    rows = [(name, given[name]) for name in dict.fromkeys([*first, *given]) if given[name] is not None]
    return "\n\n".join([_plain(_wrapped(rows)), *trainer.describe_more()]) + "\n"


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
    """Where the time of the run went and everything of it lies; None if it made no step and left nothing."""
    said = []
    if trainer.global_step > trainer.session.began_at:
        said.append(trainer.times.report(trainer.callbacks.times()))
    if trainer.experiment is not None and trainer.experiment.exists():
        said.append(_places(trainer, trainer.experiment))
    return "\n".join(said) or None


def _places(trainer: Trainer, experiment: Experiment) -> str:
    rows = []
    checkpoints = trainer.session.checkpoints
    steps = checkpoints.steps()
    if steps:
        newest = checkpoints.path(steps[-1])
        rows.append(("checkpoints", f"{experiment.checkpoints} (newest: {newest.name})"))
    if experiment.metrics.exists():
        rows.append(("metrics", str(experiment.metrics)))
    rows.append(("log", str(experiment.log)))
    if experiment.summaries.is_dir():
        rows.append(("look at it", f"tensorboard --logdir {shlex.quote(str(experiment.summaries))}"))
    return "\n" + _plain(rows)


def plain_table(rows: Mapping[str, Any]) -> str:
    """Names and values as a table without lines; long values are folded where spaces allow."""
    return _plain(_wrapped(list(rows.items())))


def _plain(rows: list[tuple[str, str]]) -> str:
    return tabulate(rows, tablefmt="plain", disable_numparse=True)


def _wrapped(rows: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Fold long values, so that lines keep to `_WIDTH` characters where spaces allow."""
    room = _WIDTH - max(len(name) for name, _ in rows) - 2
    return [
        (name, textwrap.fill(str(value), room, break_on_hyphens=False, break_long_words=False)) for name, value in rows
    ]
