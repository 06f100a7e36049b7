"""A run in Weights & Biases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.writers.tracker import Point, Tracker, needed, opened

if TYPE_CHECKING:
    from prototrain.experiment.record import Outcome

_EXIT_CODE = {"finished": 0, "interrupted": 130, "failed": 1, "running": 0}


class WandbWriter(Tracker):
    """Sends the run to Weights & Biases: scalars over ``global_step``, pictures, the config, and the outcome as exit
    code and in the summary.

        WandbWriter("digits", mode="offline")

    It needs the extra ``prototrain[wandb]``. A resumed run continues the same run there. Without a network, use
    ``mode="offline"`` (or WANDB_MODE=offline) and ``wandb sync`` later; W&B's own process then loses what it has in
    memory when this one is killed, up to 32 kB; metrics.jsonl has all scalars.

    Args:
        project: of W&B's; by default WANDB_PROJECT.
        options: more for `wandb.init`, such as ``name="first"``, ``tags=["small"]`` or ``dir="/tmp"``.
    """

    extra = "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__()
        self._options = {"project": project, "resume": "allow", "reinit": "create_new", **options}

    def setup(self) -> None:
        self._wandb = needed("wandb", self.name, self.extra)

    def connect(self, run: str | None) -> str:
        trainer, config = self.trainer, self.trainer.run.config()
        options = {"name": self.title, **self._options} | ({} if run is None else {"id": run})
        self._handle = self._wandb.init(**options)
        if config is not None:
            self._handle.config.update(config.to_plain(), allow_val_change=True)
        # W&B's own count of steps drops late values, such as those of a validation after a stop.
        self._handle.define_metric("global_step", hidden=True)
        self._handle.define_metric("*", step_metric="global_step")
        self._handle.summary["outcome"] = str(trainer.outcome)
        return str(self._handle.id)

    def send(self, points: Sequence[Point]) -> None:
        for step, group in groupby(points, key=lambda point: point.step):
            values = {point.name: self._value(point) for point in group}
            self._handle.log({"global_step": step, **values})

    def _value(self, point: Point) -> Any:
        return [self._wandb.Image(opened(picture)) for picture in point.pictures] or point.value

    def close(self, outcome: Outcome) -> None:
        self._handle.summary["outcome"] = str(outcome)
        self._handle.finish(exit_code=_EXIT_CODE[outcome.state])
