"""A run in Weights & Biases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.writers.mlflow_writer import opened
from prototrain.callbacks.writers.tracker import Point, Tracker, needed

if TYPE_CHECKING:
    from prototrain.experiment.record import Outcome

_EXIT_CODE = {"finished": 0, "interrupted": 130, "failed": 1, "running": 0}


class WandbWriter(Tracker):
    """Sends the run to Weights & Biases: scalars over ``global_step``, pictures, the config, and the outcome as exit
    code and in the summary.

    It needs the extra ``prototrain[wandb]``. A resumed run continues the same run there. Without a network, say
    ``mode="offline"`` (or WANDB_MODE=offline) and ``wandb sync`` later; W&B's own process then loses what it has in
    memory when this one is killed, up to 32 kB, of which metrics.jsonl has the scalars.

    Args:
        project: of W&B's; by default WANDB_PROJECT.
        name: of the run; by default that of the experiment's directory.
        seconds: how often something is sent.
        clock: returns seconds since the epoch.
        options: more for `wandb.init`, such as ``entity="us"``, ``tags=["first"]`` or ``dir="/tmp"``.
    """

    extra = "wandb"

    def __init__(
        self,
        project: str | None = None,
        *,
        name: str | None = None,
        seconds: float = 5.0,
        clock: Callable[[], float] = time.time,
        **options: Any,
    ) -> None:
        super().__init__(seconds=seconds, clock=clock)
        self._options = {"project": project, "resume": "allow", "reinit": "create_new", **options}
        self._title = name

    def setup(self) -> None:
        super().setup()
        self._wandb = needed("wandb", self.name, self.extra)

    def connect(self, run: str | None) -> str:
        trainer = self.trainer
        directory, config = trainer.experiment, trainer.run.config()
        title = self._title or (None if directory is None else directory.directory.resolve().name)
        options = {**self._options, "name": title, **({} if run is None else {"id": run})}
        self._handle = self._wandb.init(**options)
        if config is not None:
            self._handle.config.update(config.to_plain(), allow_val_change=True)
        # W&B's own count of steps drops what comes late, such as a validation that a stop has put off.
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
