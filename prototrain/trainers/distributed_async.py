"""Several processes, on one machine or many: workers that compute gradients without waiting for each other."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from prototrain.cluster.servers import connect, find_servers, serve
from prototrain.errors import ConfigError
from prototrain.experiment import Experiment
from prototrain.step.compiled_call import CompiledSteps
from prototrain.trainers.async_towers import DivideGradients
from prototrain.trainers.tower import TowerTrainer

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol

POLL_SECONDS = 0.001
SILENCE_SECONDS = 20.0


class ScheduledSteps(CompiledSteps):
    """Steps that the coordinator hands, each with its batch, to whichever worker is free.

    Args:
        trainer: whose steps they are.
        clock: returns the time in seconds.
    """

    can_fail = False  # the other workers' steps go on
    _trainer: DistributedAsyncTrainer

    def __init__(self, trainer: DistributedAsyncTrainer, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(trainer)
        self._clock = clock
        self._call = self._schedule_all
        self._on_worker = tf.function(self._run_on_worker, autograph=False)

    @property
    def can_be_watched(self) -> bool:
        return False  # a step takes place elsewhere, and several of them at once

    def _schedule_all(self, iterator: Any, n: tf.Tensor) -> tuple[Any, ...]:
        results: list[Any] = []
        first, ended = self._trainer.global_step, False
        try:
            while len(results) < int(n) and not ended and not self._stop_requested():
                batch = iterator.get_next_as_optional()
                if batch.has_value():
                    step = tf.constant(np.int64(first + len(results)))
                    results.append(self._trainer.coordinator.schedule(self._on_worker, (batch.get_value(), step)))
                else:
                    ended = True
        finally:
            try:
                self._wait()
            except tf.errors.OpError:
                self._trainer.cluster.require_alive()  # has a clearer word than the network, if that is what failed
                raise
            finally:
                made = [values for result in results if (values := _get(result)) is not None]
                good = [values for values in made if values[0]]
                self._completed.assign(np.int64(first + len(good)))
        # Workers count at the same time without a lock, so that the optimizer's own count falls behind.
        self._trainer.optimizer.iterations.assign(np.int64(first + len(good)))
        bad = [values for values in made if not values[0]]
        return (len(good), not bad, ended, 0.0, *(bad or good or [()])[-1][1:])

    def _wait(self) -> None:
        """Wait until the workers have done all that was scheduled.

        Raises:
            StepError: nothing happens, because workers or parameter servers are gone.
            tf.errors.OpError: what failed on a worker.
        """
        asked = self._clock()
        while not self._trainer.coordinator.done():
            time.sleep(POLL_SECONDS)
            if self._clock() - asked > SILENCE_SECONDS:
                self._trainer.cluster.require_alive()
                asked = self._clock()

    def _run_on_worker(self, inputs: dict[str, Any], step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        outputs, finite = self._iterate(inputs, step)
        return finite, *self._packing.pack(outputs)


class DistributedAsyncTrainer(TowerTrainer):
    """Trains with several processes at once; each worker applies the gradients of its batches as soon as it has them.

    Start the same command in every process. ``TF_CONFIG`` says who is who: one ``chief``, which runs the loop, reads
    the data and writes the experiment; any number of ``worker`` processes, which compute; and of ``ps`` processes,
    which hold the variables. Workers and parameter servers serve until the chief is gone, and end then. A step is one
    update by one worker with a whole batch of ``model.batch_size`` examples. A worker that dies costs the time of its
    steps only: another one repeats them. It rests on TensorFlow's `ParameterServerStrategy` and its coordinator.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        scale_gradient: divide each gradient by the number of workers, so that a learning rate means what it means with
            synchronous towers.
        experiment: the directory of the run, if it is to leave anything behind.

    Raises:
        ConfigError: there is no description of the cluster, TensorFlow has started before this, or the config asks for
            what cannot be done on several machines.
        SystemExit: in a worker or parameter server, once the chief is gone.
    """

    def __init__(
        self,
        model: ModelProtocol,
        *,
        scale_gradient: bool = True,
        experiment: Experiment | str | Path | None = None,
    ) -> None:
        self.prepare()
        if model.config["model.mixed_precision"] == "mixed_float16":
            raise ConfigError(
                "model.mixed_precision: mixed_float16 adapts one loss scale at every step, which workers that do not "
                "wait for each other cannot share; take mixed_bfloat16"
            )
        strategy, self.cluster = connect()
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._order = uuid.uuid4().hex[:8]
        super().__init__(model, experiment=experiment, strategy=strategy)
        if scale_gradient and self.cluster.workers > 1:
            self.gradient_processors.insert(0, DivideGradients(self.cluster.workers))

    @classmethod
    def prepare(cls) -> None:
        if find_servers().task_type == "chief":
            connect()
        else:
            serve()

    @property
    def steps(self) -> CompiledSteps:
        if self._steps is None:
            self._steps = ScheduledSteps(self)
        return self._steps

    def setup_scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self.strategy.scope()
        return scope

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "towers": None,
            "workers": f"{self.cluster.workers}, each with batches of its own",
            "parameter servers": self.cluster.parameter_servers,
            "global batch": None,
            "batch": self.global_batch,
        }

    def provenance(self) -> dict[str, Any]:
        # No other run has the same order.
        return {**super().provenance(), "order of the workers' updates": f"that of run {self._order}"}


def _get(result: Any) -> tuple[Any, ...] | None:
    """What a step returned; None if it failed or never began."""
    try:
        return tuple(result.get())
    except tf.errors.OpError:
        return None
