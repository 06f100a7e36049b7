"""The trainers of an `Estimator`: prototrain's own, which take the optimizer from what the `model_fn` returned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.checkpoint.global_random import tensorflow_seeded
from prototrain.data.elements import batch_size
from prototrain.errors import ConfigError, DataError
from prototrain.estimator.program import Program
from prototrain.estimator.specs import OptimizerSpec
from prototrain.model.built import BuiltModel
from prototrain.model.variables import select
from prototrain.optimizers import ClipByGlobalNorm
from prototrain.towers import components
from prototrain.trainers.base import Trainer
from prototrain.trainers.replicated import SyncReplicatedTrainer
from prototrain.trainers.tower import SimpleTrainer, TowerTrainer


class ProgramTrainer(TowerTrainer):
    """What the trainers of a `Program` share; a mixin."""

    model: Program
    repeats_data = False
    takes_other_optimizers = True

    def create_optimizers(self) -> None:
        settle(self.built)
        spec: OptimizerSpec = self.model.spec.train_op
        if spec.variables is not None:
            self.config["model.trainable_variables.filter_regex"] = spec.variables
            self.trainable = select(self.trainable, self.config, "model.trainable_variables")
        if spec.clip_norm is not None:
            self.gradient_processors.append(ClipByGlobalNorm(spec.clip_norm))
        self.gradient_processors += spec.processors
        # A new one: the variables of that in the model_fn are shared between its calls.
        self.optimizer = type(spec.optimizer).from_config(spec.optimizer.get_config())
        self.register_optimizer("optimizer", self.optimizer, self.trainable.values())

    @contextmanager
    def _around_run(self) -> Iterator[None]:
        with super()._around_run(), tensorflow_seeded(self.config["trainer.random_seed"]):
            yield

    def describe_more(self) -> list[str]:
        return [] if self.global_step else super().describe_more()


class EstimatorTrainer(ProgramTrainer, SimpleTrainer):
    """Trains a `Program` on one device."""


class ReplicatedEstimatorTrainer(ProgramTrainer, SyncReplicatedTrainer):
    """Trains a `Program` on several devices; each takes batches of the size that the `input_fn` gives."""


class BuiltProgram(BuiltModel):
    """A `Program` with the weights of a checkpoint, to evaluate and to predict.

    Args:
        program: in the mode that it is to be used in.
    """

    model: Program

    def __init__(self, program: Program) -> None:
        super().__init__(program, repeats_data=False)
        settle(self)

    def measure(self, steps: int | None) -> dict[str, Any] | None:
        """Evaluate.

        Args:
            steps: how many batches; None: all.

        Returns:
            the loss, the metrics and the global step, by name, or None if a stop was requested before the end.

        Raises:
            DataError: the dataset has no end, and there are no `steps`.
        """
        if steps is None and int(self.datasets["trn"].cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise DataError("the dataset of input_fn has no end, so say how many batches to evaluate: steps=...")
        metrics = self.model.metrics
        for metric in metrics.values():
            metric.reset_state()
        found = self.evaluate("trn", steps or 0)
        if found is None:
            return None
        results = {name: np.asarray(metric.result()) for name, metric in metrics.items()}
        measured = {name: value if value.ndim else float(value) for name, value in results.items()}
        return {**found, **measured, "global_step": self.step}

    def take_over(self, trainer: Trainer) -> None:
        """Take over the present weights of a trainer, and what stops it.

        Raises:
            CheckpointError: it has others.
        """
        theirs = {name: components(variable)[0] for name, variable in trainer.model_variables.items()}
        self.assign(theirs, "of the run", cure="model_fn must make the same layers in the modes TRAIN and EVAL")
        self.counter.step, self.stop = trainer.global_step, trainer.stop


def make_trainer(program: Program, experiment: str, distribute: Any) -> ProgramTrainer:
    """A trainer on one device, or on those of a `tf.distribute.MirroredStrategy`.

    Raises:
        ConfigError: the strategy is of another kind.
    """
    if distribute is None:
        return EstimatorTrainer(program, experiment=experiment)
    if type(distribute) is not tf.distribute.MirroredStrategy:
        raise ConfigError(
            f"train_distribute must be a tf.distribute.MirroredStrategy, not {type(distribute).__name__}; for several "
            "machines write the model as a package and use MultiWorkerTrainer or DistributedAsyncTrainer"
        )
    for first in program.datasets()["trn"].take(1):  # the trainer reads its own, and has to know the size before
        program.config["model.batch_size"] = int(batch_size(first))
    specs = [tf.DeviceSpec.from_string(device) for device in distribute.extended.worker_devices]
    towers = [f"{spec.device_type}:{spec.device_index}" for spec in specs]
    return ReplicatedEstimatorTrainer(program, towers, batch="per_tower", experiment=experiment)


def settle(built: BuiltModel) -> None:
    """Complete a model that was built: note the batch size, forget variables of metrics and optimizers."""
    for name, variable in list(built.variables.items()):
        is_metric = variable.synchronization == tf.VariableSynchronization.ON_READ
        once = variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
        if is_metric or (once and name.rpartition("/")[2].startswith(("iteration", "learning_rate"))):
            del built.variables[name]
    built.config["model.batch_size"] = max(1, int(batch_size(built.data.first_batch)) // built.placement.towers)
