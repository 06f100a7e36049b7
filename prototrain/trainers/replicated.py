"""Synchronous training on several towers in one process, with replicated or central variables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.experiment import Experiment
from prototrain.model.placement import CentralPlacement, Placement
from prototrain.towers import choose_devices
from prototrain.trainers.tower import TowerTrainer

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol


class SyncReplicatedTrainer(TowerTrainer):
    """Trains on several devices with replicated variables and averaged gradients.

    Each tower trains on its part of the batch. N towers give the same losses, metrics and weights as one tower on the
    whole batch, up to rounding. `train_step` gets one tower's part; gradient processors get the averages.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        towers: the number of GPUs, device names (a list such as ``["GPU:0", "GPU:1"]``, or one string), ``"cpu:4"`` for
            four logical CPU devices, or None for all GPUs.
        experiment: the experiment directory, or its path. Without one the trainer writes no files.

    Raises:
        ConfigError: a device does not exist, or the batch size is not divisible by the number of towers.
    """

    takes_towers = True

    def __init__(
        self,
        model: ModelProtocol,
        towers: int | str | Sequence[str] | None = None,
        *,
        experiment: Experiment | str | Path | None = None,
    ) -> None:
        self.devices = choose_devices(towers)
        # Between CPU devices, TensorFlow would choose its collective ops. They are slower, and a failed step makes them
        # unusable for the rest of the process.
        by_copies = not all(name.startswith("GPU") for name in self.devices)
        combine = tf.distribute.ReductionToOneDevice() if by_copies else None
        strategy = tf.distribute.MirroredStrategy(self.devices, cross_device_ops=combine)
        placement = Placement(strategy, combines_by_copies=by_copies)
        super().__init__(model, experiment=experiment, placement=placement)


class SyncParameterServerTrainer(TowerTrainer):
    """Trains on several devices with the variables on a single device, where gradients are averaged.

    This stores the variables and the optimizer's slots only once, but copies all weights to every tower in each step.

    Args:
        model, towers, experiment: see `SyncReplicatedTrainer`.
        parameter_device: the device of the variables.

    Raises:
        ConfigError: a device does not exist, or the batch size is not divisible by the number of towers.
    """

    takes_towers = True

    def __init__(
        self,
        model: ModelProtocol,
        towers: int | str | Sequence[str] | None = None,
        *,
        parameter_device: str = "CPU:0",
        experiment: Experiment | str | Path | None = None,
    ) -> None:
        self.devices = choose_devices(towers)
        (self.parameter_device,) = choose_devices([parameter_device])
        placement = CentralPlacement(self.devices, self.parameter_device)
        super().__init__(model, experiment=experiment, placement=placement)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "variables on": self.parameter_device}
