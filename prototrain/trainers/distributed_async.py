"""Several processes, on one machine or many: workers that compute gradients without waiting for each other."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from prototrain.cluster.hub import Limits, no_sign_of_life
from prototrain.cluster.servers import ServerCluster, connect, find_servers, serve
from prototrain.errors import ClusterError, ConfigError
from prototrain.experiment import Experiment
from prototrain.model.placement import Placement
from prototrain.private_api.runtime import is_ready
from prototrain.step.calls import StepCalls
from prototrain.step.loop import Iteration, StepPlan
from prototrain.step.result import ScalarPacker, StepResult
from prototrain.step.variables import VariableBackup
from prototrain.trainers.compiled_steps import step_plan
from prototrain.trainers.own_pace import OwnPaceTrainer

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol

POLL_SECONDS = 0.001
LOOK_SECONDS = 2.0
SILENCE_SECONDS = 20.0


class ScheduledSteps(StepCalls):
    """Steps that the coordinator hands, each with its batch, to whichever worker is free.

    Args:
        plan: what an iteration is.
        coordinator: hands the steps out.
        cluster: the workers.
        count_updates: called with the number of completed steps.
        limits: how long to wait for a process that is silent, and for steps that do not end.
        signum: returns the signal that wants the run to end, or None.
        leave: ends the process at once, with an exit code.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        plan: StepPlan,
        coordinator: Any,
        cluster: ServerCluster,
        count_updates: Callable[[int], None],
        limits: Limits,
        signum: Callable[[], int | None],
        *,
        leave: Callable[[int], object] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(plan)
        self._packer = ScalarPacker()
        self._coordinator = coordinator
        self._cluster = cluster
        self._count_updates = count_updates
        self._limits = limits
        self._signum = signum
        self._leave = leave
        self._clock = clock
        self._completed = 0
        self._iteration = Iteration(plan)
        self._backup = VariableBackup(plan.changed_early)
        self._on_worker = tf.function(self._run_on_worker, autograph=False)

    def _run(self, iterator: Any, n: int, start: int) -> StepResult:
        results: list[Any] = []
        self._completed, ended = start, False
        self._asking(self._backup.take)
        try:
            while len(results) < n and not ended and not self._plan.stop_requested():
                batch = iterator.get_next_as_optional()
                if batch.has_value():
                    step = tf.constant(np.int64(start + len(results)))
                    results.append(self._coordinator.schedule(self._on_worker, (batch.get_value(), step)))
                else:
                    ended = True
        finally:
            stuck = None
            try:
                stuck = self._wait()
            except tf.errors.OpError as error:
                self._cluster.require_alive_after(error)  # has a clearer word than the network, if that failed
                raise
            finally:
                made = [values for result in results if (values := _get(result)) is not None]
                good = [values for values in made if values[0]]
                self._completed = start + len(good)
                if len(good) < len(made):
                    self._asking(self._backup.restore)
        if stuck is not None and not self._plan.stop_requested():
            return StepResult(steps=len(good), error=ClusterError(stuck))
        self._count_updates(self._completed)
        bad = [values for values in made if not values[0]]
        outputs = {} if not (bad or good) else self._packer.unpack((bad or good)[-1][1:])
        return StepResult(steps=len(good), outputs=outputs, is_finite=not bad, data_ended=ended)

    def _asking(self, read_or_write: Callable[[], None]) -> None:
        """Do something with variables, which parameter servers have."""
        try:
            read_or_write()
        except tf.errors.OpError as error:
            self._cluster.require_alive_after(error)
            raise

    def _wait(self) -> str | None:
        """Wait until the workers have done all that was scheduled.

        Returns:
            what keeps them from it, if it is not worth waiting any longer.

        Raises:
            StepError: nothing happens, because workers or parameter servers are gone.
            tf.errors.OpError: what failed on a worker.
        """
        begin = asked = self._clock()
        is_quiet = True
        while not self._coordinator.done():
            time.sleep(POLL_SECONDS)
            if self._clock() - asked < LOOK_SECONDS:
                continue
            silent = self._cluster.silent()
            asked = self._clock()
            if asked - begin > SILENCE_SECONDS:
                self._cluster.require_alive()
            if silent and is_quiet:
                is_quiet = False
                self._plan.log(f"waiting for {', '.join(silent)}, of which nothing is heard")
            stuck = self._verdict(silent, asked - begin)
            if stuck is not None:
                return stuck
        return None

    def _verdict(self, silent: list[str], waited: float) -> str | None:
        signum = self._signum()
        if silent and (signum is not None or waited > self._limits.silence):
            found = f"{', '.join(silent)}: {no_sign_of_life(round(waited))}"
            code = 1 if signum is None else 128 + signum
            # At its end TensorFlow would wait for the processes that do not answer.
            atexit.register(_leave_at_once, self._leave, code)
            if any(name.startswith("parameter server") for name in silent):
                # It has the variables, so that nothing can be saved, and to try would be to wait for ever.
                sys.stderr.write(f"prototrain: error: {found}; the newest checkpoint is what a resume continues from\n")
                sys.stderr.flush()
                self._leave(code)
            return found
        if waited > self._limits.stall:
            return f"no worker has ended a step for {waited:.0f} seconds (trainer.stall_timeout)"
        return None

    def _run_on_worker(self, inputs: dict[str, Any], step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        outputs, counts, _ = self._iteration(inputs, step)
        return counts, *self._packer.pack(outputs)

    def completed(self) -> int:
        return self._completed


class DistributedAsyncTrainer(OwnPaceTrainer):
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
        self.prepare(model.config["trainer.cluster_timeout"])
        if model.config["model.mixed_precision"] == "mixed_float16":
            raise ConfigError(
                "model.mixed_precision: mixed_float16 adapts one loss scale at every step, which workers that do not "
                "wait for each other cannot share; take mixed_bfloat16"
            )
        strategy, self.cluster = connect()
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        super().__init__(
            model, self.cluster.workers, Placement(strategy), scale_gradient=scale_gradient, experiment=experiment
        )

    @classmethod
    def prepare(cls, timeout: float | None = None) -> None:
        if find_servers().task_type == "chief":
            connect(timeout=timeout)
        else:
            serve(timeout=timeout)

    def make_calls(self) -> StepCalls:
        plan = step_plan(self, may_fail=False, may_be_watched=False)  # the other workers' steps continue
        limits = Limits(self.config["trainer.cluster_timeout"], self.config["trainer.stall_timeout"])
        return ScheduledSteps(
            plan, self.coordinator, self.cluster, self._count_updates, limits, lambda: self.stop.signum
        )

    def _count_updates(self, completed: int) -> None:
        # Workers count at the same time without a lock, so that the optimizer's own count falls behind.
        self.optimizer.iterations.assign(np.int64(completed))

    def _setup_scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self.strategy.scope()
        return scope

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "towers": None,
            "devices": None,
            "workers": f"{self.cluster.workers}, each with batches of its own",
            "parameter servers": self.cluster.parameter_servers,
        }


def _leave_at_once(leave: Callable[[int], object], code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    leave(code)


def _get(result: Any) -> tuple[Any, ...] | None:
    """What a step returned; None if it failed, never began, or has not ended."""
    if not is_ready(result):
        return None
    try:
        return tuple(result.get())
    except tf.errors.OpError:
        return None
