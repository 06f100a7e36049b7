"""Weights & Biases writer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.writers.tracker import Point, Tracker

if TYPE_CHECKING:
    from prototrain.experiment.record import Outcome

_EXIT_CODE = {"finished": 0, "interrupted": 130, "failed": 1, "running": 0}


class WandbWriter(Tracker):
    """Logs the run to Weights & Biases.

        WandbWriter("digits", mode="offline")

    Logs scalars over ``global_step``, images, the config, and the outcome as the exit code and in the summary. Requires
    the extra ``prototrain[wandb]``. A resumed run continues the same W&B run. Without a network, use ``mode="offline"``
    and run ``wandb sync`` later.

    Args:
        project: the W&B project. Defaults to the environment variable WANDB_PROJECT.
        options: more arguments of `wandb.init`, such as ``name="first"``, ``tags=["small"]`` or ``dir="/tmp"``.
    """

    extra = "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__()
        self._options = {"project": project, "resume": "allow", "reinit": "create_new", **options}

    def setup(self) -> None:
        self._wandb = self.needed("wandb")

    def connect(self, run: str | None) -> str:
        options = {"name": self.title, **self._options} | ({} if run is None else {"id": run})
        self._handle = self._wandb.init(**options)
        if (config := self.trainer.run.config()) is not None:
            self._handle.config.update(config.to_plain(), allow_val_change=True)
        # W&B's built-in step drops late values, such as those of a validation after a stop.
        self._handle.define_metric("global_step", hidden=True)
        self._handle.define_metric("*", step_metric="global_step")
        self._handle.summary["outcome"] = str(self.trainer.outcome)
        return str(self._handle.id)

    def send(self, points: Sequence[Point]) -> None:
        for step, group in groupby(points, key=lambda point: point.step):
            values = {point.name: [*map(self._wandb.Image, point.pictures)] or point.value for point in group}
            self._handle.log({"global_step": step, **values})

    def close(self, outcome: Outcome) -> None:
        self._handle.summary["outcome"] = str(outcome)
        self._handle.finish(exit_code=_EXIT_CODE[outcome.state])
