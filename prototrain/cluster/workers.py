"""Which of several worker processes this one is, from ``TF_CONFIG`` or from Slurm, and how they exchange a word."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import ConfigError
from prototrain.system.signals import LeavingAtOnce
from prototrain.system.waiting import announcing

SLURM_PORT = 8888
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
    """

    index: int
    count: int

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
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver({"worker": tasks}, port_base=SLURM_PORT)
        return resolver, Worker(int(os.environ["SLURM_PROCID"]), tasks)
    raise ConfigError(
        "several workers: neither TF_CONFIG nor Slurm's variables are set; start them with srun, or set for each "
        """TF_CONFIG='{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'"""
    )


@functools.cache
def connect(reduction: str = "auto") -> tuple[tf.distribute.Strategy, Worker]:
    """Connect this process with the other workers; once, and before anything else makes TensorFlow start.

    Args:
        reduction: how values are combined between workers, one of `COLLECTIVES`.

    Raises:
        ConfigError: there is no description of the cluster, or TensorFlow has started already.
    """
    resolver, worker = find_cluster()
    options = tf.distribute.experimental.CommunicationOptions(implementation=COLLECTIVES[reduction])
    try:
        with announcing("waiting for the other workers to connect"), LeavingAtOnce():
            return tf.distribute.MultiWorkerMirroredStrategy(resolver, options), worker
    except RuntimeError as error:
        raise ConfigError(
            "several workers: TensorFlow has started before the workers were connected; call "
            f"prototrain.cluster.connect() before anything makes a tensor, a variable or an optimizer ({error})"
        ) from error


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
    worker = Worker(index + (chiefs if kind == "worker" else 0), chiefs + len(cluster.get("worker", [])))
    return tf.distribute.cluster_resolver.TFConfigClusterResolver(), worker


class Exchange:
    """Lets all workers tell each other something, which every one of them has to join.

    Args:
        strategy: connects the workers.
        worker: this process.
    """

    def __init__(self, strategy: tf.distribute.Strategy, worker: Worker) -> None:
        self._strategy = strategy
        self._worker = worker
        self._call = tf.function(self._gather, reduce_retracing=True)

    def numbers(self, *mine: float) -> np.ndarray[Any, Any]:
        """Give some numbers.

        Returns:
            those of all workers, one row each.

        Raises:
            tf.errors.OpError: a worker is gone.
        """
        rows = np.zeros((self._worker.count, len(mine)), np.float64)
        rows[self._worker.index] = mine
        return np.asarray(self._call(tf.constant(rows)).numpy())

    def texts(self, mine: str) -> list[str]:
        """Give a text; get those of all workers, in their order."""
        encoded = np.frombuffer(mine.encode(), np.uint8)
        length = int(self.numbers(len(encoded)).max())
        padded = np.zeros(max(length, 1))
        padded[: len(encoded)] = encoded
        rows = self.numbers(*padded).astype(np.uint8)
        return [bytes(row).rstrip(b"\0").decode() for row in rows]

    def _gather(self, rows: tf.Tensor) -> tf.Tensor:
        def give() -> tf.Tensor:
            tower = tf.distribute.get_replica_context()
            return tower.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(rows))

        towers = self._strategy.num_replicas_in_sync // self._worker.count
        summed = self._strategy.experimental_local_results(self._strategy.run(give))[0]
        return summed / tf.cast(towers, summed.dtype)  # each tower of a worker has given the same
