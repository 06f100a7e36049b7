"""Several towers in one process that share one copy of the variables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.experiment import Experiment
from prototrain.model.placement import CentralPlacement
from prototrain.towers import choose_devices, in_words
from prototrain.trainers.replicated import BatchMeaning, SyncTrainer

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol


class SyncParameterServerTrainer(SyncTrainer):
    """Trains on several devices at once with variables that lie on one of them; gradients are averaged there.

    Takes the memory of the variables and of the optimizer once only; every step copies all weights to every tower.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        towers: see `SyncReplicatedTrainer`.
        parameter_device: where the variables lie.
        batch: see `SyncReplicatedTrainer`.
        experiment: the directory of the run, if it is to leave anything behind.

    Raises:
        ConfigError: there are no such devices, or the batch does not divide by the number of towers.
    """

    takes_towers = True

    def __init__(
        self,
        model: ModelProtocol,
        towers: int | str | Sequence[str] | None = None,
        *,
        parameter_device: str = "CPU:0",
        batch: BatchMeaning = "global",
        experiment: Experiment | str | Path | None = None,
    ) -> None:
        self.devices = choose_devices(towers)
        (self.parameter_device,) = choose_devices([parameter_device])
        placement = CentralPlacement(self.devices, self.parameter_device)
        super().__init__(model, experiment=experiment, placement=placement, batch=batch)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "devices": in_words(self.devices), "variables on": self.parameter_device}
