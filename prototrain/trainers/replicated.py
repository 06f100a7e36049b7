"""Synchronous training on several towers in one process, with replicated or central variables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf

from prototrain.errors import ConfigError
from prototrain.experiment import Experiment
from prototrain.model.placement import CentralPlacement, Placement
from prototrain.towers import choose_devices
from prototrain.trainers.tower import TowerTrainer

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol


Reduction = Literal["auto", "nccl", "hierarchical", "one_device"]

_REDUCTIONS: dict[str, Any] = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


class SyncReplicatedTrainer(TowerTrainer):
    """Trains on several devices with replicated variables and averaged gradients.

    Each tower trains on its part of the batch. N towers give the same losses, metrics and weights as one tower on the
    whole batch, up to rounding. `train_step` gets one tower's part; gradient processors get the averages.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        towers: the number of GPUs, device names (a list such as ``["GPU:0", "GPU:1"]``, or one string), ``"cpu:4"`` for
            four logical CPU devices, or None for all GPUs.
        reduction: how gradients are combined; "auto" uses NCCL if there is more than one GPU.
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
        reduction: Reduction = "auto",
        experiment: Experiment | str | Path | None = None,
    ) -> None:
        if reduction != "auto" and reduction not in _REDUCTIONS:
            raise ConfigError(f"reduction must be auto, {', '.join(_REDUCTIONS)}, not {reduction!r}")
        self.devices = choose_devices(towers)
        if reduction == "auto" and not all(name.startswith("GPU") for name in self.devices):
            # TensorFlow would choose its collective ops. They are slower between CPU devices, and a failed step makes
            # them unusable for the rest of the process.
            reduction = "one_device"
        combine = None if reduction == "auto" else _REDUCTIONS[reduction]()
        strategy = tf.distribute.MirroredStrategy(self.devices, cross_device_ops=combine)
        placement = Placement(strategy, combines_by_copies=reduction in ("hierarchical", "one_device"))
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
