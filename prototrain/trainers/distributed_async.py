"""Several processes, on one machine or many: workers that compute gradients without waiting for each other."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import tensorflow as tf

from prototrain.config.schema import SCHEMA
from prototrain.distributed.connect import Deadline, ending_after, host_and_port, require_not_started, tf_config
from prototrain.errors import ConfigError, StepError
from prototrain.experiment import Experiment
from prototrain.model.placement import Placement
from prototrain.step.calls import StepCalls
from prototrain.step.loop import Iteration, StepPlan
from prototrain.step.result import ScalarPacker, StepResult
from prototrain.step.variables import VariableBackup
from prototrain.system.signals import LeavingAtOnce, ignore_save_signals
from prototrain.system.terminal import say
from prototrain.tf_private import is_ready
from prototrain.trainers.async_towers import OwnPaceTrainer
from prototrain.trainers.compiled_steps import step_plan

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol

_POLL_SECONDS = 1.0
_GONE_SECONDS = 15.0
_EXAMPLE = (
    '{"cluster": {"chief": ["host1:2222"], "worker": ["host2:2222", "host3:2222"], "ps": ["host4:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class ServerCluster:
    """The processes of ``TF_CONFIG`` by kind, and this one among them."""

    addresses: dict[str, list[str]]
    kind: str
    index: int

    @classmethod
    def find(cls) -> ServerCluster:
        """Read ``TF_CONFIG``; a ConfigError if it has no chief, workers and parameter servers."""
        cluster, kind, index = tf_config(_EXAMPLE)
        for name in ("chief", "worker", "ps"):
            if not cluster.get(name):
                raise ConfigError(f"TF_CONFIG: the cluster has no {name!r}; it must be such as {_EXAMPLE}")
        return cls(cluster, kind, index)

    def silent(self) -> list[str]:
        """The names of the parameter servers and workers that do not answer."""
        kinds = (("parameter server", "ps"), ("worker", "worker"))
        named = [(f"{word} {i} ({at})", at) for word, kind in kinds for i, at in enumerate(self.addresses[kind])]
        return [name for name, address in named if not _answers(address)]

    def require_usable(self) -> None:
        """Raise a StepError if a parameter server or all workers do not answer."""
        silent = self.silent()
        if lost := [name for name in silent if name.startswith("parameter server")]:
            raise StepError(f"{lost[0]} is gone, and with it the variables that it held")
        if len(silent) == len(self.addresses["worker"]):
            raise StepError(f"none of the {len(silent)} workers is left")


_connections: list[tuple[tf.distribute.Strategy, ServerCluster]] = []


def connect(timeout: float) -> tuple[tf.distribute.Strategy, ServerCluster]:
    """Connect the chief with all others, once, before anything else makes TensorFlow start."""
    if not _connections:
        cluster, deadline = ServerCluster.find(), Deadline(timeout)
        require_not_started("parameter servers")
        while missing := cluster.silent():
            deadline.check(missing)
            time.sleep(0.2)
        with ending_after(timeout), LeavingAtOnce():
            resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
            _connections.append((tf.distribute.ParameterServerStrategy(resolver), cluster))
    return _connections[0]


def serve(timeout: float, *, clock: Callable[[], float] = time.monotonic) -> NoReturn:
    """Do what the chief asks for, as a worker or parameter server, until it is gone."""
    cluster, deadline, heard = ServerCluster.find(), Deadline(timeout), 0.0
    (chief,), own = cluster.addresses["chief"], cluster.addresses[cluster.kind][cluster.index]
    try:
        _server = tf.distribute.Server(cluster.addresses, cluster.kind, cluster.index, protocol="grpc")
    except tf.errors.OpError as error:
        raise ConfigError(f"TF_CONFIG: cannot listen at {own}: {error.message}") from error
    say(f"{cluster.kind} {cluster.index} serves at {own} until the chief at {chief} is gone")
    with ignore_save_signals():  # a signal to save may be sent to all processes, and only the chief saves
        while not heard or clock() - heard < _GONE_SECONDS:
            if _answers(chief):
                heard = clock()
            elif not heard:
                deadline.check([f"the chief at {chief}"])
            time.sleep(_POLL_SECONDS)
    say(f"the chief at {chief} is gone")
    raise SystemExit(0)


def _answers(address: str) -> bool:
    """Whether a TensorFlow server is at work at an address. It speaks first; a stopped process does not."""
    try:
        with socket.create_connection(host_and_port(address), timeout=1.0) as line:
            return bool(line.recv(1))
    except OSError:
        return False


class ScheduledSteps(StepCalls):
    """Steps that the coordinator hands, each with its batch, to whichever worker is free.

    Args:
        plan: what an iteration is.
        coordinator: hands the steps out.
        cluster: the processes.
        count_updates: called with the number of completed steps.
        timeout: seconds to wait for a process that does not answer.
        stall_timeout: seconds to wait for the end of steps.
        signum: returns the signal that ends the run, or None.
    """

    def __init__(
        self,
        plan: StepPlan,
        coordinator: Any,
        cluster: ServerCluster,
        count_updates: Callable[[int], None],
        timeout: float,
        stall_timeout: float,
        signum: Callable[[], int | None],
    ) -> None:
        super().__init__(plan)
        self._packer = ScalarPacker()
        self._coordinator, self._cluster = coordinator, cluster
        self._count_updates, self._signum = count_updates, signum
        self._timeout, self._stall_timeout = timeout, stall_timeout
        self._completed = 0
        self._iteration = Iteration(plan)
        self._backup = VariableBackup(plan.changed_early)
        self._on_worker = tf.function(self._run_on_worker, autograph=False)

    def _run(self, iterator: Any, n: int, start: int) -> StepResult:
        results: list[Any] = []
        self._completed, ended = start, False
        try:
            self._backup.take()
            while len(results) < n and not ended and not self._plan.stop_requested():
                batch = iterator.get_next_as_optional()
                if batch.has_value():
                    step = tf.constant(np.int64(start + len(results)))
                    results.append(self._coordinator.schedule(self._on_worker, (batch.get_value(), step)))
                else:
                    ended = True
            self._wait()
        except tf.errors.OpError as error:
            if isinstance(error, tf.errors.UnavailableError | tf.errors.UnknownError | tf.errors.AbortedError):
                time.sleep(1.0)  # a process that is being killed answers for a moment
                self._cluster.require_usable()
            raise
        finally:
            made = [values for result in results if (values := _get(result)) is not None]
            good = [values for values in made if values[0]]
            self._completed = start + len(good)
            if len(good) < len(made):
                with suppress(tf.errors.OpError):  # whatever made the steps fail is raised
                    self._backup.restore()
        self._count_updates(self._completed)
        bad = [values for values in made if not values[0]]
        outputs = self._packer.unpack((bad or good)[-1][1:]) if made else {}
        return StepResult(steps=len(good), outputs=outputs, is_finite=not bad, data_ended=ended)

    def _wait(self) -> None:
        """Wait until the workers have done all that was scheduled; a StepError if processes for that are gone."""
        begin = asked = time.monotonic()
        while not self._coordinator.done():
            time.sleep(0.001)
            if time.monotonic() - asked < 2 * _POLL_SECONDS:
                continue
            asked, silent = time.monotonic(), self._cluster.silent()
            signum, waited = self._signum(), asked - begin
            if silent and (signum is not None or waited > self._timeout):
                # Nothing that is on a process that does not answer can be saved, and TensorFlow would wait for it.
                say(f"prototrain: error: {', '.join(silent)} does not answer; the run ends unsaved", to_stderr=True)
                os._exit(1 if signum is None else 128 + signum)
            if silent and waited > _GONE_SECONDS:
                self._cluster.require_usable()
            if waited > self._stall_timeout:
                raise StepError(f"no worker has ended a step for {waited:.0f} seconds (trainer.stall_timeout)")

    def _run_on_worker(self, inputs: dict[str, Any], step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        outputs, counts, _ = self._iteration(inputs, step)
        return counts, *self._packer.pack(outputs)

    def completed(self) -> int:
        return self._completed


class DistributedAsyncTrainer(OwnPaceTrainer):
    """Trains with several processes at once; each worker applies the gradients of its batches as soon as it has them.

    Start the same command in every process. ``TF_CONFIG`` says who is who: one ``chief``, which runs the loop, reads
    the data and writes the experiment; ``worker`` processes, which compute; and ``ps`` processes, which hold the
    variables. A step is one update by one worker with a batch of ``model.batch_size`` examples. Workers and parameter
    servers end when the chief is gone. A worker that dies costs its present steps: another one repeats them.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        scale_gradient: divide each gradient by the number of workers, so that a learning rate means what it means with
            synchronous towers.
        experiment: the directory of the run, if it is to leave anything behind.

    Raises:
        ConfigError: there is no description of the cluster, TensorFlow has started already, or the config asks for
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
        strategy, self.cluster = connect(model.config["trainer.cluster_timeout"])
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        workers = len(self.cluster.addresses["worker"])
        super().__init__(model, workers, Placement(strategy), scale_gradient=scale_gradient, experiment=experiment)

    @classmethod
    def prepare(cls, timeout: float | None = None) -> None:
        seconds = SCHEMA["trainer.cluster_timeout"].default if timeout is None else timeout
        if ServerCluster.find().kind == "chief":
            connect(seconds)
        else:
            serve(seconds)

    def make_calls(self) -> StepCalls:
        plan = step_plan(self, may_fail=False, may_be_watched=False)  # the other workers' steps continue
        timeouts = self.config["trainer.cluster_timeout"], self.config["trainer.stall_timeout"]
        return ScheduledSteps(
            plan, self.coordinator, self.cluster, self._count_updates, *timeouts, lambda: self.stop.signum
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
            "workers": f"{len(self.cluster.addresses['worker'])}, each with its own batches",
            "parameter servers": len(self.cluster.addresses["ps"]),
        }


def _get(result: Any) -> tuple[Any, ...] | None:
    """What a step returned; None if it failed, never began, or has not ended."""
    if not is_ready(result):
        return None
    try:
        return tuple(result.get())
    except tf.errors.OpError:
        return None
