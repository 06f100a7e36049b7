"""How one batch, its gradients and the variables are divided among towers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.data.batches import all_reduce_mean, split_batch
from prototrain.model.sharing import VariableStore
from prototrain.towers import OF_TOWER, components, is_local, is_seed, seed_of_tower
from prototrain.trainers.base import Trainer


class PlacedTrainer(Trainer):
    """A trainer whose work a TensorFlow strategy places on one tower or several.

    Attributes:
        strategy: how towers are placed.
        towers: how many there are.
        variables: the model's variables by name.
    """

    takes_towers = False  # whether the constructor has an argument `towers`
    first_tower = 0  # the index of this process's first tower among those of all processes
    strategy: tf.distribute.Strategy
    towers: int
    variables: dict[str, tf.Variable]
    _store: VariableStore

    @classmethod
    def prepare(cls) -> None:
        """Do what must come before TensorFlow starts; the command line calls it before it imports the model."""

    @classmethod
    def leads(cls) -> bool:
        """Whether a trainer made in this process would be the chief."""
        return True

    def tower_to_build(self) -> int | None:
        """The index of the tower that `build` is called for, or None if TensorFlow's strategy knows it."""
        return None

    def split_batch(self, inputs: dict[str, Any]) -> Any:
        """Divide a global batch into one part for each tower; traced."""
        if self.towers == 1:
            return inputs
        with tf.device("CPU:0"):  # where it was read: only its own part goes to each tower
            parts = split_batch(inputs, self.towers)
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )

    @property
    def variables_of_towers(self) -> dict[int, dict[str, tf.Variable]]:
        """By a tower's index, variables that only this tower has."""
        return self._store.of_tower

    @property
    def moving_statistics(self) -> list[tf.Variable]:
        """The variables that each tower assigns from its own part of a batch, and that are averaged after each step."""
        found = self.variables.values()
        return [v for v in found if v.dtype.is_floating and is_local(v)]

    def mean_over_towers(self, values: list[Any]) -> list[Any]:
        """Average tensors over all towers, from inside one; traced. Every tower gets the same bits."""
        if self.towers == 1 or not values:
            return values
        return all_reduce_mean(values)

    def declare_variable(self, **arguments: Any) -> dict[str, Any]:
        """Change the arguments that a variable of the model is made with, where the strategy needs to know more."""
        return arguments

    def _separate_towers(self) -> None:
        """Start the random layers of every tower elsewhere, and have saved what each tower has of its own."""
        for name, variable in self.variables.items():
            copies = components(variable)
            if self.towers == 1 or not is_local(variable) or variable.dtype.is_floating:
                continue
            initial = copies[0].numpy()
            for index, copy in enumerate(copies, self.first_tower):
                if index > 0:
                    copy.assign(seed_of_tower(initial, index) if is_seed(name, copy) else initial)
                    self.state[f"{name}{OF_TOWER}{index}"] = copy
