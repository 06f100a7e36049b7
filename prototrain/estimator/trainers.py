"""Trainers of an `Estimator`, which take the optimizers from the `EstimatorSpec`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from prototrain import SimpleTrainer, SyncReplicatedTrainer, TowerTrainer, Trainer
from prototrain.callbacks import Callback, LearningRate
from prototrain.checkpoint.values import tensorflow_seeded
from prototrain.data.batches import batch_size
from prototrain.errors import ConfigError, DataError, ModelError
from prototrain.estimator.program import Program
from prototrain.estimator.specs import OptimizerSpec
from prototrain.model.built import BuiltModel
from prototrain.optimizers import ClipByGlobalNorm
from prototrain.towers import components
from prototrain.trainers.optimization import rate, recreate_optimizer


class ProgramTrainer(TowerTrainer):
    """Mixin for trainers of a `Program`."""

    model: Program
    repeats_data = False

    def create_optimizers(self) -> None:
        set_batch_size(self.built)
        for name, variable in take_out_metrics(self.built).items():
            for number, copy in enumerate(components(variable)):  # each tower has its own sums
                self.state[f"callbacks/metrics/{name}/{number}"] = copy
        specs: tuple[OptimizerSpec, ...] = self.model.spec.train_op
        if len(specs) == 1 and isinstance(specs[0].variables, str):
            self.config["model.trainable_variables.filter_regex"] = specs[0].variables  # for the record
        self.parts, self.trainable = [], {}
        for number, spec in enumerate(specs, 1):
            chosen = _chosen(spec, self.built.trainable, is_alone=len(specs) == 1)
            if twice := next(filter(self.trainable.__contains__, chosen), None):
                raise ModelError(
                    f"train_op: two optimizers train {twice}; OptimizerSpec(variables=...) divides them up"
                )
            # Use a copy: calls of `model_fn` share the variables of the original optimizer.
            optimizer = recreate_optimizer(spec.optimizer)
            self.register_optimizer("optimizer" if number == 1 else f"optimizer_{number}", optimizer, chosen.values())
            self.parts.append(Part(spec, optimizer, {id(variable) for variable in chosen.values()}))
            self.trainable |= chosen
        self.trainable = {name: v for name, v in self.built.trainable.items() if name in self.trainable}
        self.optimizer = self.parts[0].optimizer

    def apply_gradients(self, gradients_and_variables: Any, **options: Any) -> None:
        """Update the variables of each optimizer; see `TowerTrainer.apply_gradients`."""
        for part in self.parts:
            clipping = [] if part.spec.clip_norm is None else [ClipByGlobalNorm(part.spec.clip_norm)]
            super().apply_gradients(
                [(gradient, variable) for gradient, variable in gradients_and_variables if id(variable) in part.ids],
                optimizer=part.optimizer,
                processors=[*clipping, *part.spec.processors],
                **options,
            )

    def _check_data(self, built: BuiltModel) -> None:
        pass  # the data determines the batch size

    def describe(self) -> dict[str, Any]:
        rates = ["by step" if part.spec.learning_rate else f"{rate(part.optimizer):.6g}" for part in self.parts]
        kinds = [type(part.optimizer).__name__ for part in self.parts]
        return {**super().describe(), "optimizer": "; ".join(map("{}, learning rate {}".format, kinds, rates))}

    def learning_rates(self) -> list[Callback]:
        """Return callbacks for the learning rates that depend on the step."""
        return [RateOfPart(part) for part in self.parts if part.spec.learning_rate is not None]

    @contextmanager
    def _around_run(self) -> Iterator[None]:
        with super()._around_run(), tensorflow_seeded(self.config["trainer.random_seed"]):
            yield


class Part(NamedTuple):
    """The optimizer of this trainer for an `OptimizerSpec`, and the ids of the variables that it trains."""

    spec: OptimizerSpec
    optimizer: keras.optimizers.Optimizer
    ids: set[int]


def _chosen(spec: OptimizerSpec, trainable: dict[str, Any], *, is_alone: bool) -> dict[str, Any]:
    """Return the variables of one optimizer, by name."""
    given = spec.variables
    if given is None and not is_alone:
        raise ModelError("train_op: say what each of several optimizers trains, OptimizerSpec(variables=...)")
    if given is None:
        chosen = trainable
    elif isinstance(given, str):
        chosen = {name: variable for name, variable in trainable.items() if re.match(given, name)}
    else:
        ids = {id(one.value if isinstance(one, keras.Variable) else one) for one in given}
        chosen = {name: variable for name, variable in trainable.items() if id(variable) in ids}
    if not chosen:
        said = f" that {given!r} names" if isinstance(given, str) else ""
        raise ModelError(f"train_op: there are no variables{said} to train; there are {', '.join(trainable)}")
    return chosen


class RateOfPart(LearningRate):
    """Sets the learning rate of one of several optimizers; see `LearningRate`."""

    name = "LearningRate"
    optimizer: Any = None

    def __init__(self, part: Part) -> None:
        super().__init__(part.spec.rate)
        self.optimizer = part.optimizer


class EstimatorTrainer(ProgramTrainer, SimpleTrainer):
    """Trains a `Program` on one device."""


class ReplicatedEstimatorTrainer(ProgramTrainer, SyncReplicatedTrainer):
    """Trains a `Program` on several devices; each device takes whole batches of the `input_fn`."""

    @property
    def global_batch(self) -> int:
        return super().global_batch * self.towers

    def make_datasets(self) -> dict[str, tf.data.Dataset]:
        datasets = super().make_datasets()
        if self.towers == 1:
            return datasets
        trn = datasets["trn"].rebatch(self.global_batch, drop_remainder=True)
        # `rebatch` loses the infinite cardinality.
        endless = int(datasets["trn"].cardinality()) == tf.data.INFINITE_CARDINALITY
        return {**datasets, "trn": trn.repeat() if endless else trn}


class BuiltProgram(BuiltModel):
    """A `Program` in the mode EVAL or PREDICT."""

    model: Program

    def __init__(self, program: Program) -> None:
        super().__init__(program, repeats_data=False)
        take_out_metrics(self)
        set_batch_size(self)

    def require_end(self, steps: int | None) -> None:
        """Raise a DataError if all batches of an endless dataset are to be evaluated."""
        if steps is None and int(self.datasets["trn"].cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise DataError("the dataset of input_fn has no end, so say how many batches to evaluate: steps=...")

    def measure(self, steps: int | None) -> dict[str, Any] | None:
        """Evaluate `steps` batches, or all if None; returns None if a stop was requested before the end."""
        metrics = self.model.metrics
        for metric in metrics.values():
            metric.reset_state()
        found = self.evaluate("trn", steps or 0)
        if found is None:
            return None
        results = {name: np.asarray(metric.result()) for name, metric in metrics.items()}
        measured = {name: value if value.ndim else float(value) for name, value in results.items()}
        return {**found, **measured, "global_step": self.counter.step}

    def take_over(self, trainer: Trainer) -> None:
        """Copy the weights and the step of a trainer, and share its stop request."""
        theirs = {name: components(variable)[0] for name, variable in trainer.model_variables.items()}
        self.assign(theirs, "of the run", cure="model_fn must make the same layers in the modes TRAIN and EVAL")
        self.counter.step, self.stop = trainer.global_step, trainer.stop


def make_trainer(program: Program, experiment: str, distribute: Any) -> ProgramTrainer:
    """Return a trainer for one device, or for the devices of a `tf.distribute.MirroredStrategy`."""
    if distribute is None:
        return EstimatorTrainer(program, experiment=experiment)
    if type(distribute) is not tf.distribute.MirroredStrategy:
        raise ConfigError(
            f"train_distribute must be a tf.distribute.MirroredStrategy, not {type(distribute).__name__}; for several "
            "machines write the model as a package and use MultiWorkerTrainer"
        )
    for first in program.datasets()["trn"].take(1):  # the trainer needs the batch size before it reads data
        program.config["model.batch_size"] = int(batch_size(first))
    specs = [tf.DeviceSpec.from_string(device) for device in distribute.extended.worker_devices]
    towers = [f"{spec.device_type}:{spec.device_index}" for spec in specs]
    return ReplicatedEstimatorTrainer(program, towers, experiment=experiment)


def set_batch_size(built: BuiltModel) -> None:
    """Set the batch size in the config of a built model to that of its data."""
    built.config["model.batch_size"] = max(1, int(batch_size(built.data.first_batch)) // built.placement.towers)


def take_out_metrics(built: BuiltModel) -> dict[str, tf.Variable]:
    """Remove the variables of metrics and optimizers from those of a built model, and return the metrics' variables."""
    metrics: dict[str, tf.Variable] = {}
    for name, variable in list(built.variables.items()):
        is_metric = variable.synchronization == tf.VariableSynchronization.ON_READ
        once = variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
        if is_metric or (once and name.rpartition("/")[2].startswith(("iteration", "learning_rate"))):
            metrics |= {name: variable} if is_metric else {}
            del built.variables[name]
    return metrics
