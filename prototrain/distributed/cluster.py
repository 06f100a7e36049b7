"""The place of this process among the workers, from ``TF_CONFIG`` or Slurm, and the connection between them."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from prototrain.config.schema import SCHEMA
from prototrain.errors import ClusterError, ConfigError
from prototrain.system.signals import LeavingAtOnce
from prototrain.system.terminal import PATIENCE_SECONDS, say
from prototrain.tf_private import has_started, set_patience

# Below the ephemeral ports of operating systems. The tasks of one job on a node share a range.
_SLURM_PORTS = range(12000, 32000)
_SLURM_PORTS_OF_JOB = 32
SILENCE_SECONDS = 30.0
"""How long a worker may be silent until TensorFlow considers it lost. The collective operations of all then fail."""
CONNECT_SECONDS = 60.0
_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Worker:
    """The place of this process among the workers.

    Attributes:
        index: the number of the worker, from 0; the first worker is the chief.
        count: the number of workers.
        addresses: ``host:port`` of each worker, in order.
        chiefs: how many workers ``TF_CONFIG`` lists under "chief". TensorFlow numbers the others from 0.
    """

    index: int
    count: int
    addresses: tuple[str, ...] = field(default=(), compare=False)
    chiefs: int = field(default=0, compare=False)

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    def name(self, index: int) -> str:
        """Return the name of a worker for messages."""
        address = f" ({self.addresses[index]})" if index < len(self.addresses) else ""
        return f"worker {index}{address}"


def find_cluster() -> tuple[Any, Worker]:
    """Return TensorFlow's cluster resolver, and the place of this process in the cluster.

    Raises:
        ConfigError: neither ``TF_CONFIG`` nor Slurm describes a cluster with this process as a worker.
    """
    if "TF_CONFIG" in os.environ:
        resolver: Any = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        try:
            cluster, kind, index = resolver.cluster_spec().as_dict(), resolver.task_type, int(resolver.task_id)
            chiefs, others = cluster.get("chief", []), cluster.get("worker", [])
            {"chief": chiefs, "worker": others}[kind][index]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ConfigError(f"TF_CONFIG must be JSON such as {_EXAMPLE}, with this process as a task") from error
        first = len(chiefs) if kind == "worker" else 0
        return resolver, Worker(index + first, len(chiefs) + len(others), (*chiefs, *others), len(chiefs))
    if "SLURM_PROCID" in os.environ and "SLURM_STEP_NODELIST" in os.environ:
        tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver({"worker": tasks}, port_base=slurm_port())
        addresses = tuple(resolver.cluster_spec().as_dict()["worker"])
        return resolver, Worker(int(os.environ["SLURM_PROCID"]), tasks, addresses)
    cure = f"use `prototrain run --workers N` or srun, or set for each TF_CONFIG='{_EXAMPLE}'"
    raise ConfigError(f"several workers: neither TF_CONFIG nor Slurm's variables are set; {cure}")


def slurm_port() -> int:
    """Return the first port of a Slurm job step, which differs between steps that share a node."""
    places = len(_SLURM_PORTS) // _SLURM_PORTS_OF_JOB
    job, step = (int(os.environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return _SLURM_PORTS[(job + 101 * step) % places * _SLURM_PORTS_OF_JOB]


_connection: tuple[tf.distribute.Strategy, Worker] | None = None


def connect(*, timeout: float | None = None) -> tuple[tf.distribute.Strategy, Worker]:
    """Connect this process with the other workers, once, before anything else makes TensorFlow start.

    Args:
        timeout: seconds to wait for the others to start; by default the default of ``trainer.cluster_timeout``.

    Returns:
        the strategy, and the place of this process.

    Raises:
        ConfigError: neither ``TF_CONFIG`` nor Slurm describes a cluster, or TensorFlow has already started.
        ClusterError: a worker did not start in time, or the chief cannot listen at its address.
    """
    global _connection
    if _connection is not None:
        return _connection
    resolver, worker = find_cluster()
    if has_started():
        cure = "make the trainer, or call prototrain.distributed.connect(), before any tensor or optimizer"
        raise ConfigError(f"several workers: TensorFlow has started before they were connected; {cure}")
    atexit.register(_leave_if_lost)
    seconds = SCHEMA["trainer.cluster_timeout"].default if timeout is None else timeout
    meet(worker, seconds)
    jobs = [(kind, len(tasks)) for kind, tasks in resolver.cluster_spec().as_dict().items()]
    set_patience(
        leader=f"/job:{'chief' if 'chief' in dict(jobs) else 'worker'}/replica:0/task:0",
        jobs=[job for job in jobs if job[0] in ("chief", "worker")],
        connected_ms=int(1000 * CONNECT_SECONDS),
        silence_ms=int(1000 * min(seconds, SILENCE_SECONDS)),
    )
    # TensorFlow holds Python's global lock while it connects, so the timer cannot be a Python thread.
    faulthandler.dump_traceback_later(CONNECT_SECONDS, exit=True)
    try:
        with LeavingAtOnce():
            _connection = tf.distribute.MultiWorkerMirroredStrategy(resolver), worker
    finally:
        faulthandler.cancel_dump_traceback_later()
    return _connection


is_lost = threading.Event()  # an event that is set when a worker is gone or has failed


def _leave_if_lost() -> None:
    """End the process at exit if a worker is lost, because TensorFlow would wait for that worker."""
    if is_lost.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


class _Deadline:
    """Prints the missing workers after two seconds, and raises a `ClusterError` after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._started_at, self._said = seconds, time.monotonic(), ""

    def check(self, *missing: str) -> None:
        names, waited = ", ".join(missing), time.monotonic() - self._started_at
        if waited > self._seconds:
            limit = f"within {self._seconds:g} seconds (trainer.cluster_timeout)"
            raise ClusterError(f"{names} did not come {limit}; do all have the same addresses, and are ports blocked?")
        if waited > PATIENCE_SECONDS and names != self._said:
            self._said = names
            say(f"waiting for {names} to start ...")


def meet(worker: Worker, seconds: float) -> None:
    """Wait until all workers have started. The chief listens at its address, and the others connect to it.

    TensorFlow's own wait holds Python's global lock, which blocks signal handlers and messages.
    """
    if worker.count == 1:
        return
    deadline, greeting = _Deadline(seconds), json.dumps(worker.addresses).encode()
    host, _, port = worker.addresses[0].rpartition(":")
    chief = host.strip("[]"), int(port)
    if not worker.is_chief:
        while not _call(chief, b"%d %s\n" % (worker.index, greeting), deadline):
            deadline.check(f"{worker.name(0)}, the chief,")
            time.sleep(0.1)
        return
    there: dict[int, socket.socket] = {}
    kind: Any = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
    with ExitStack() as stack:
        try:
            door = stack.enter_context(socket.create_server(("", chief[1]), backlog=1024, **kind))
        except OSError as error:
            why = f"{error.strerror}; is another run using this port?"
            raise ClusterError(f"cannot listen at {worker.addresses[0]}: {why}") from error
        door.settimeout(0.2)
        while missing := [worker.name(index) for index in range(1, worker.count) if index not in there]:
            deadline.check(*missing)
            with suppress(OSError, ValueError):
                line = stack.enter_context(door.accept()[0])
                line.settimeout(1.0)
                index, _, rest = line.makefile("rb").readline().strip().partition(b" ")
                if rest == greeting:  # otherwise a worker of another run, or another program
                    there[int(index)] = line
        for line in there.values():
            with suppress(OSError):
                line.sendall(b"!")


def _call(chief: tuple[str, int], greeting: bytes, deadline: _Deadline) -> bool:
    """Connect to the chief and wait for its sign that all workers have started; returns whether it came."""
    try:
        with socket.create_connection(chief, timeout=1.0) as line:
            line.sendall(greeting)
            while True:
                try:
                    return line.recv(1) == b"!"
                except TimeoutError:
                    deadline.check("the other workers")
    except OSError:
        return False
