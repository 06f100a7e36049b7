"""Which of several worker processes this one is, from ``TF_CONFIG`` or Slurm, and how they are connected."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from prototrain.config.schema import SCHEMA
from prototrain.errors import ClusterError, ConfigError
from prototrain.system.signals import LeavingAtOnce
from prototrain.system.terminal import say
from prototrain.system.waiting import PATIENCE_SECONDS
from prototrain.tf_private import has_started, set_patience

# Below the ports that systems hand out; the tasks of one job on a node share a range of them.
SLURM_PORTS = range(12000, 32000)
SLURM_PORTS_OF_JOB = 32
SILENCE_SECONDS = 30.0
"""After so long without a heartbeat TensorFlow takes a worker for lost, and the collective operations of all fail."""
CONNECT_SECONDS = 60.0
COLLECTIVES = {
    name: getattr(tf.distribute.experimental.CommunicationImplementation, name.upper())
    for name in ("auto", "nccl", "ring")
}
_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Worker:
    """This process among its peers.

    Attributes:
        index: its number, from 0; the first worker is the chief.
        count: how many workers there are.
        addresses: ``host:port`` of all of them, in their order.
        chiefs: how many of them ``TF_CONFIG`` lists under "chief": TensorFlow counts the others from 0.
    """

    index: int
    count: int
    addresses: tuple[str, ...] = field(default=(), compare=False)
    chiefs: int = field(default=0, compare=False)

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    def name(self, index: int) -> str:
        """The name of a worker in messages."""
        address = f" ({self.addresses[index]})" if index < len(self.addresses) else ""
        return f"worker {index}{address}"


def find_cluster() -> tuple[Any, Worker]:
    """Find the cluster that this process was started in.

    Returns:
        TensorFlow's cluster resolver, and this process's place.

    Raises:
        ConfigError: neither ``TF_CONFIG`` nor Slurm describes a cluster with this process as a worker.
    """
    if "TF_CONFIG" in os.environ:
        cluster, kind, index = tf_config()
        if kind not in ("chief", "worker"):
            raise ConfigError(f"TF_CONFIG: a task of the kind {kind!r} is no worker; it must be such as {_EXAMPLE}")
        chiefs = cluster.get("chief", [])
        addresses = (*chiefs, *cluster.get("worker", []))
        first = len(chiefs) if kind == "worker" else 0
        worker = Worker(index + first, len(addresses), addresses, len(chiefs))
        return tf.distribute.cluster_resolver.TFConfigClusterResolver(), worker
    if "SLURM_PROCID" in os.environ and "SLURM_STEP_NODELIST" in os.environ:
        tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver({"worker": tasks}, port_base=slurm_port())
        addresses = tuple(resolver.cluster_spec().as_dict()["worker"])
        return resolver, Worker(int(os.environ["SLURM_PROCID"]), tasks, addresses)
    raise ConfigError(
        "several workers: neither TF_CONFIG nor Slurm's variables are set; use `prototrain run --workers N` or srun, "
        f"or set for each TF_CONFIG='{_EXAMPLE}'"
    )


def tf_config() -> tuple[dict[str, list[str]], str, int]:
    """Read ``TF_CONFIG``: the addresses by kind of task, and this process's kind and number."""
    try:
        given = json.loads(os.environ.get("TF_CONFIG", ""))
        cluster = {kind: [str(address) for address in addresses] for kind, addresses in given["cluster"].items()}
        kind, index = given["task"]["type"], int(given["task"]["index"])
        cluster[kind][index]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError(f"TF_CONFIG must be JSON such as {_EXAMPLE}; this one is not, or has no such task") from error
    return cluster, kind, index


def slurm_port() -> int:
    """The first port of a Slurm job step, so that several of them can share a node."""
    places = len(SLURM_PORTS) // SLURM_PORTS_OF_JOB
    job, step = (int(os.environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return SLURM_PORTS[(job + 101 * step) % places * SLURM_PORTS_OF_JOB]


_connections: dict[str, tuple[tf.distribute.Strategy, Worker]] = {}


def connect(reduction: str = "auto", *, timeout: float | None = None) -> tuple[tf.distribute.Strategy, Worker]:
    """Connect this process with the other workers, once, before anything else makes TensorFlow start.

    Args:
        reduction: how values are combined between workers, one of `COLLECTIVES`.
        timeout: seconds to wait for the others to start; by default that of ``trainer.cluster_timeout``.

    Returns:
        the strategy, and this process's place.

    Raises:
        ConfigError: there is no description of the cluster, or TensorFlow has started already.
        ClusterError: a worker has not come in time.
    """
    if reduction not in _connections:
        resolver, worker = find_cluster()
        if not _connections:
            require_not_started("several workers")
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
        options = tf.distribute.experimental.CommunicationOptions(implementation=COLLECTIVES[reduction])
        with ending_after(CONNECT_SECONDS), LeavingAtOnce():
            _connections[reduction] = tf.distribute.MultiWorkerMirroredStrategy(resolver, options), worker
    return _connections[reduction]


is_lost = threading.Event()
"""Set once a worker is gone or has failed."""


def _leave_if_lost() -> None:
    """End the process where TensorFlow would wait, at its own end, for a worker that does not answer."""
    if is_lost.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def require_not_started(who: str) -> None:
    """Raise a `ConfigError` if TensorFlow has started already, so that processes cannot be connected."""
    if has_started():
        raise ConfigError(
            f"{who}: TensorFlow has started before they were connected; make the trainer, or call "
            "prototrain.distributed.connect(), before anything makes a tensor, a variable or an optimizer"
        )


@contextmanager
def ending_after(seconds: float) -> Iterator[None]:
    """End the process, with its stacks, if a block takes too long.

    TensorFlow holds Python's lock while it connects, so only a thread that is not Python's can do that.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


# -- waiting for all to be there --------------------------------------------------------------------------------------


class Deadline:
    """Prints who is missing after two seconds, and raises a `ClusterError` when so many seconds are over."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._begin, self._said = seconds, time.monotonic(), ""

    def check(self, missing: Sequence[str]) -> None:
        """Called again and again while one is missing."""
        names, waited = ", ".join(missing), time.monotonic() - self._begin
        if waited > self._seconds:
            raise ClusterError(
                f"{names} did not come within {self._seconds:g} seconds (trainer.cluster_timeout); is every process "
                "started with the same addresses, and can they reach each other's ports?"
            )
        if waited > PATIENCE_SECONDS and names != self._said:
            self._said = names
            say(f"waiting for {names} to start ...")


def meet(worker: Worker, seconds: float) -> None:
    """Wait until all workers are there, with the chief listening at its address for the others.

    TensorFlow's own wait holds Python's lock: no signal is handled and no message printed during that.
    """
    if worker.count == 1:
        return
    deadline, greeting = Deadline(seconds), json.dumps(worker.addresses).encode()
    if not worker.is_chief:
        while not _call(worker, greeting, deadline):
            deadline.check([f"{worker.name(0)}, the chief,"])
            time.sleep(0.1)
        return
    there: dict[int, socket.socket] = {}
    with ExitStack() as stack:
        door = stack.enter_context(_listen(worker.addresses[0]))
        door.settimeout(0.2)
        while missing := [worker.name(index) for index in range(1, worker.count) if index not in there]:
            deadline.check(missing)
            with suppress(OSError, ValueError):
                line = stack.enter_context(door.accept()[0])
                line.settimeout(1.0)
                index, _, rest = line.makefile("rb").readline().strip().partition(b" ")
                if rest == greeting:  # else another run's worker, or another program
                    there[int(index)] = line
        for line in there.values():
            with suppress(OSError):
                line.sendall(b"!")


def _call(worker: Worker, greeting: bytes, deadline: Deadline) -> bool:
    """Call the chief and wait for its sign that all are there; returns whether it came."""
    try:
        with socket.create_connection(host_and_port(worker.addresses[0]), timeout=1.0) as line:
            line.sendall(b"%d %s\n" % (worker.index, greeting))
            while True:
                try:
                    return line.recv(1) == b"!"
                except TimeoutError:
                    deadline.check(["the other workers"])
    except OSError:
        return False


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``host:port``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(address: str) -> socket.socket:
    port = host_and_port(address)[1]
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise ClusterError(f"cannot listen at {address}: {error.strerror}; is another run using this port?") from error
