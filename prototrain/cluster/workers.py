"""Which of several worker processes this one is, from ``TF_CONFIG`` or from Slurm, and how they are connected."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from prototrain.cluster import collectives
from prototrain.cluster.hub import Limits
from prototrain.cluster.joining import meet
from prototrain.cluster.link import Link
from prototrain.config.schema import SCHEMA
from prototrain.errors import ConfigError
from prototrain.system.signals import LeavingAtOnce
from prototrain.system.tracebacks import in_one_line

# Below the ports that systems hand out by themselves; so many for the tasks of one job on a node.
SLURM_PORTS = range(12000, 32000)
SLURM_PORTS_OF_JOB = 32
_CONNECTING_SECONDS = (
    60.0  # at the least, for a slow machine: with the chief's port not open yet, gRPC waits to call again
)
COLLECTIVES = {
    "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
}


@dataclass(frozen=True)
class Worker:
    """This process among its peers.

    Attributes:
        index: its number, from 0; the first worker is the chief.
        count: how many workers there are.
        addresses: ``host:port`` of all of them, in their order.
    """

    index: int
    count: int
    addresses: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_chief(self) -> bool:
        return self.index == 0


def find_cluster() -> tuple[Any, Worker]:
    """Find the cluster that this process was started in.

    Returns:
        TensorFlow's cluster resolver, and this process's place.

    Raises:
        ConfigError: neither ``TF_CONFIG`` nor Slurm describes a cluster with this process as a worker.
    """
    if "TF_CONFIG" in os.environ:
        return _from_tf_config()
    if "SLURM_PROCID" in os.environ and "SLURM_STEP_NODELIST" in os.environ:
        tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver({"worker": tasks}, port_base=slurm_port())
        addresses = resolver.cluster_spec().as_dict()["worker"]
        return resolver, Worker(int(os.environ["SLURM_PROCID"]), tasks, tuple(addresses))
    raise ConfigError(
        "several workers: neither TF_CONFIG nor Slurm's variables are set; start them with srun, or set for each "
        """TF_CONFIG='{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'"""
    )


_connections: dict[str, tuple[tf.distribute.Strategy, Worker]] = {}
_links: list[Link] = []


def connect(reduction: str = "auto", *, timeout: float | None = None) -> tuple[tf.distribute.Strategy, Worker]:
    """Connect this process with the other workers; once, and before anything else makes TensorFlow start.

    Args:
        reduction: how values are combined between workers, one of `COLLECTIVES`.
        timeout: seconds to wait for the others to start; by default that of ``trainer.cluster_timeout``.

    Raises:
        ConfigError: there is no description of the cluster, or TensorFlow has started already.
        ClusterError: somebody has not come in time.
    """
    if reduction not in _connections:
        resolver, worker = find_cluster()
        options = tf.distribute.experimental.CommunicationOptions(implementation=COLLECTIVES[reduction])
        if not _links:
            require_not_started("several workers", "prototrain.cluster.connect()")
            seconds = SCHEMA["trainer.cluster_timeout"].default if timeout is None else timeout
            limits = Limits(silence=seconds, stall=max(seconds, SCHEMA["trainer.stall_timeout"].default))
            _links.append(meet(list(worker.addresses), worker.index, limits))
            atexit.register(_links[0].say_goodbye)
            jobs = resolver.cluster_spec().as_dict()
            collectives.be_patient({kind: jobs[kind] for kind in ("chief", "worker") if kind in jobs}, seconds)
        with _telling(_links[0]), ending_after(_links[0].limits.silence), LeavingAtOnce():
            _connections[reduction] = tf.distribute.MultiWorkerMirroredStrategy(resolver, options), worker
        _links[0].on_break = collectives.break_off
    return _connections[reduction]


def own_link() -> Link:
    """This process's line to the others, once it is connected."""
    return _links[0]


def require_not_started(who: str, what: str) -> None:
    """Check that processes can still be connected.

    Raises:
        ConfigError: TensorFlow has started already.
    """
    if collectives.has_started():
        raise ConfigError(
            f"{who}: TensorFlow has started before they were connected; call {what} before anything makes a tensor, a "
            "variable or an optimizer"
        )


@contextmanager
def ending_after(seconds: float) -> Iterator[None]:
    """End the process, with its stack, if what is done inside takes too long.

    TensorFlow holds Python's lock while it connects, so that only a thread that is not Python's can do so. All are
    there by now, and it takes a moment, unless one of them dies in that moment.
    """
    faulthandler.dump_traceback_later(max(seconds, _CONNECTING_SECONDS), exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def _telling(link: Link) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        link.fail(in_one_line(error))
        raise


def slurm_port() -> int:
    """The first port of a Slurm job step, so that several of them can share a node."""
    places = len(SLURM_PORTS) // SLURM_PORTS_OF_JOB
    job, step = (int(os.environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return SLURM_PORTS[(job + 101 * step) % places * SLURM_PORTS_OF_JOB]


def tf_config(example: str) -> tuple[dict[str, list[str]], str, int]:
    """Read ``TF_CONFIG``.

    Args:
        example: shown where it cannot be read.

    Returns:
        the addresses by kind of task, and this process's kind and number.

    Raises:
        ConfigError: it is not set, is not such JSON, or has no such task.
    """
    try:
        given = json.loads(os.environ.get("TF_CONFIG", ""))
        cluster = {kind: [str(address) for address in addresses] for kind, addresses in given["cluster"].items()}
        kind, index = given["task"]["type"], int(given["task"]["index"])
        cluster[kind][index]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError(f"TF_CONFIG must be JSON such as {example}; this one is not, or has no such task") from error
    return cluster, kind, index


def _from_tf_config() -> tuple[Any, Worker]:
    example = '{"cluster": {"worker": ["host1:2222", ...]}, "task": {"type": "worker", "index": 0}}'
    cluster, kind, index = tf_config(example)
    if kind not in ("chief", "worker"):
        raise ConfigError(
            f"TF_CONFIG: MultiWorkerTrainer has no task of the kind {kind!r}; it must be such as {example}"
        )
    chiefs = len(cluster.get("chief", []))
    addresses = (*cluster.get("chief", []), *cluster.get("worker", []))
    worker = Worker(index + (chiefs if kind == "worker" else 0), len(addresses), addresses)
    return tf.distribute.cluster_resolver.TFConfigClusterResolver(), worker
