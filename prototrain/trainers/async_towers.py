"""Several towers in one process that update shared variables without waiting for each other."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from prototrain.experiment import Experiment
from prototrain.model.sharing import base_name
from prototrain.step.compiled_call import CompiledSteps
from prototrain.step.loss_scale import divide
from prototrain.towers import OF_TOWER, choose_devices, is_seed, seed_of_tower
from prototrain.trainers.tower import TowerTrainer

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol


class AsyncSteps(CompiledSteps):
    """One compiled call per tower, run at the same time, each in a thread of its own.

    Args:
        trainer: whose steps they are.
    """

    can_fail = False  # the other towers' calls go on
    _trainer: AsyncTrainer

    def __init__(self, trainer: AsyncTrainer) -> None:
        super().__init__(trainer)
        self._total = self._completed
        self._counts = [tf.Variable(0, dtype=tf.int64, trainable=False) for _ in trainer.devices]
        self._calls: list[Any] = []
        self._pool = ThreadPoolExecutor(len(trainer.devices), thread_name_prefix="tower")
        self._stride = len(trainer.devices)
        self._call = self._call_all

    @property
    def can_be_watched(self) -> bool:
        return False  # towers that go at their own pace have no last step in common

    def _call_all(self, iterator: Any, n: tf.Tensor) -> tuple[Any, ...]:
        if not self._calls:
            self._trace(iterator, n)
        start = self._trainer.global_step
        share, rest = divmod(int(n), len(self._calls))
        futures = []
        for index, (call, count) in enumerate(zip(self._calls, self._counts, strict=True)):
            count.assign(np.int64(start + index))
            quota = tf.constant(np.int32(share + (index < rest)))
            futures.append(self._pool.submit(self._call_one, call, iterator, quota))
        errors = [error for future in futures if (error := future.exception())]
        # What was asked to stop because of another tower goes on in the next call, unless a signal has come.
        self._stop.set(self._trainer.stop.signum is not None)
        made = [int(count) - start - index for index, count in enumerate(self._counts)]
        self._total.assign(np.int64(start + sum(made)))
        if errors:
            raise errors[0]
        outcomes = [future.result() for future in futures]
        bad = [outcome for outcome in outcomes if not outcome[1]]
        shown = bad or [outcome for outcome in outcomes if int(outcome[0])] or outcomes
        vectors = [
            tf.reduce_mean(tf.stack(parts), 0) for parts in zip(*(outcome[4:] for outcome in shown), strict=True)
        ]
        waited = max(float(outcome[3]) for outcome in outcomes)
        return (sum(made), not bad, any(bool(outcome[2]) for outcome in outcomes), waited, *vectors)

    def _call_one(self, call: Any, iterator: Any, n: tf.Tensor) -> Any:
        try:
            outcome = call(iterator, n)
        except BaseException:
            self._stop.set(True)
            raise
        if not outcome[1]:
            self._stop.set(True)
        return outcome

    def _prepare_watched(self, arguments: tuple[Any, ...]) -> Any:
        if not self._calls:
            self._trace(*arguments)
        self._completed = self._total
        return super()._prepare_watched(arguments)

    def _trace(self, *arguments: Any) -> None:
        # One after the other: the towers' names and seeds must not depend on which thread is faster.
        for index, count in enumerate(self._counts):
            self._trainer.tracing_tower, self._completed = index, count
            self._calls.append(tf.function(self._run, autograph=False).get_concrete_function(*arguments))
        self._trainer.tracing_tower, self._completed = 0, self._total

    def _tower(self, inputs: dict[str, Any]) -> Any:
        with tf.device(self._trainer.devices[self._trainer.tracing_tower]):
            return super()._tower(inputs)


class AsyncTrainer(TowerTrainer):
    """Trains on several devices at once; each tower applies the gradients of its own batches as soon as it has them.

    A step is one update by one tower, with a whole batch of ``model.batch_size`` examples. The towers read and write
    one copy of the variables and wait for nobody, so updates may rest on weights that are some steps old, and no two
    runs are the same to the bit. Where callbacks ask for every single step there is nothing to do at the same time:
    then only the first tower works.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        towers: see `SyncReplicatedTrainer`.
        scale_gradient: divide each gradient by the number of towers, so that a learning rate means what it means with
            synchronous towers.
        experiment: the directory of the run, if it is to leave anything behind.

    Raises:
        ConfigError: there are no such devices.
    """

    takes_towers = True

    def __init__(
        self,
        model: ModelProtocol,
        towers: int | str | Sequence[str] | None = None,
        *,
        scale_gradient: bool = True,
        experiment: Experiment | str | Path | None = None,
    ) -> None:
        self.devices = choose_devices(towers)
        self.tracing_tower = 0
        self._order = uuid.uuid4().hex[:8]
        super().__init__(model, experiment=experiment)
        if scale_gradient and len(self.devices) > 1:
            self.gradient_processors.insert(0, DivideGradients(len(self.devices)))

    @property
    def steps(self) -> CompiledSteps:
        if self._steps is None:
            self._steps = AsyncSteps(self)
        return self._steps

    def tower_to_build(self) -> int | None:
        return self.tracing_tower

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "towers": f"{len(self.devices)}, each with batches of its own",
            "global batch": None,
            "batch": self.global_batch,
            "devices": ", ".join(self.devices),
        }

    def provenance(self) -> dict[str, Any]:
        found = {**super().provenance(), "towers": len(self.devices)}
        if len(self.devices) > 1:
            found["order of the towers' updates"] = f"that of run {self._order}"  # no other run has the same
        return found

    def _separate_towers(self) -> None:
        for name, variable in self.variables.items():
            if is_seed(name, variable):
                first = variable.numpy()
                for index in range(1, len(self.devices)):
                    own = tf.Variable(seed_of_tower(first, index), trainable=False, name=base_name(variable))
                    self.variables_of_towers.setdefault(index, {})[base_name(variable)] = own
                    self.state[f"{name}{OF_TOWER}{index}"] = own


class DivideGradients:
    """A gradient processor for updates that come from several places at once.

    Args:
        places: how many; gradients are divided by this.
    """

    def __init__(self, places: int) -> None:
        self._places = places

    def __call__(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        divisor = tf.constant(np.float32(self._places))
        return [(divide(gradient, divisor), variable) for gradient, variable in pairs]
