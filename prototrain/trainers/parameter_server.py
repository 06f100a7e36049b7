"""Several towers in one process that share one copy of the variables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.experiment import Experiment
from prototrain.model.sharing import base_name
from prototrain.towers import OF_TOWER, choose_devices, is_seed, seed_of_tower
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
        strategy = tf.distribute.experimental.CentralStorageStrategy(self.devices, self.parameter_device)
        super().__init__(model, experiment=experiment, strategy=strategy, batch=batch)

    def declare_variable(self, **arguments: Any) -> dict[str, Any]:
        # There is one copy that all towers assign, so TensorFlow asks how to combine what they assign.
        if arguments.get("trainable") is False and arguments.get("aggregation") in (None, tf.VariableAggregation.NONE):
            kind = tf.as_dtype(arguments.get("dtype") or tf.float32)
            mean, first = tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA
            arguments["aggregation"] = mean if kind.is_floating else first
        return arguments

    def _separate_towers(self) -> None:
        for name, variable in list(self.variables.items()):
            if self.towers > 1 and is_seed(name, variable):
                first = tf.convert_to_tensor(variable).numpy()
                for index in range(self.towers):
                    own = tf.Variable(seed_of_tower(first, index), trainable=False, name=base_name(variable))
                    self.variables_of_towers.setdefault(index, {})[base_name(variable)] = own
                    self.state[f"{name}{OF_TOWER}{index}" if index else name] = own
                self.variables[name] = self.variables_of_towers[0][base_name(variable)]

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "devices": ", ".join(self.devices), "variables on": self.parameter_device}
