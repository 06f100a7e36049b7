"""Which of a coordinator's processes this one is, from ``TF_CONFIG``: the chief, a worker or a parameter server."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from prototrain.cluster import tf_config
from prototrain.errors import ConfigError, StepError
from prototrain.system.signals import LeavingAtOnce, outlasting
from prototrain.system.waiting import announcing

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
_EXAMPLE = (
    '{"cluster": {"chief": ["host1:2222"], "worker": ["host2:2222", "host3:2222"], "ps": ["host4:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class ServerCluster:
    """The processes of a coordinator, and this one among them.

    Attributes:
        addresses: ``host:port`` of all processes by their kind.
        task_type: this process's kind: chief, worker or ps.
        task_index: its number among its kind.
    """

    addresses: dict[str, list[str]]
    task_type: str
    task_index: int

    @property
    def workers(self) -> int:
        return len(self.addresses["worker"])

    @property
    def parameter_servers(self) -> int:
        return len(self.addresses["ps"])

    def require_alive(self) -> None:
        """Check that there are processes to work with.

        Raises:
            StepError: no worker answers, or a parameter server does not.
        """
        silent = [address for address in self.addresses["ps"] if not _answers(address)]
        if silent:
            raise StepError(f"parameter server {silent[0]} is gone, and with it the variables that it held")
        if not any(map(_answers, self.addresses["worker"])):
            raise StepError(f"none of the {self.workers} workers is left")


def find_servers() -> ServerCluster:
    """Find the cluster that this process was started in.

    Raises:
        ConfigError: ``TF_CONFIG`` does not describe one with a chief, workers and parameter servers.
    """
    cluster, kind, index = tf_config(_EXAMPLE)
    missing = [name for name in ("chief", "worker", "ps") if not cluster.get(name)]
    if missing:
        raise ConfigError(f"TF_CONFIG: the cluster has no {missing[0]!r}; it must be such as {_EXAMPLE}")
    return ServerCluster(cluster, kind, index)


@functools.cache
def connect() -> tuple[tf.distribute.Strategy, ServerCluster]:
    """Connect the chief with all others; once, before anything else makes TensorFlow start. Waits until all are there.

    Raises:
        ConfigError: there is no description of the cluster, or TensorFlow has started already.
    """
    cluster = find_servers()
    try:
        with announcing("waiting for the workers and parameter servers to connect"), LeavingAtOnce():
            resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
            return tf.distribute.ParameterServerStrategy(resolver), cluster
    except RuntimeError as error:
        raise ConfigError(
            "parameter servers: TensorFlow has started before the processes were connected; call "
            f"prototrain.cluster.servers.connect() before anything makes a tensor, a variable or an optimizer ({error})"
        ) from error


def serve(*, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
    """Do what the chief asks for, as a worker or parameter server, until it is gone.

    Raises:
        ConfigError: this process cannot listen at its address.
        SystemExit: the chief is gone.
    """
    cluster = find_servers()
    (chief,) = cluster.addresses["chief"]
    own = cluster.addresses[cluster.task_type][cluster.task_index]
    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec(cluster.addresses), cluster.task_type, cluster.task_index, protocol="grpc"
        )
    except tf.errors.OpError as error:
        raise ConfigError(f"TF_CONFIG: cannot listen at {own}: {error.message}") from error
    print(f"{cluster.task_type} {cluster.task_index} serves at {own} until the chief at {chief} is gone", flush=True)
    heard: float | None = None
    with outlasting():  # a signal to save may be sent to all processes, and only the chief saves
        while heard is None or clock() - heard < PATIENCE_SECONDS:
            if _answers(chief):
                heard = clock()
            sleep(POLL_SECONDS)
    print(f"the chief at {chief} is gone", flush=True)
    del server
    raise SystemExit(0)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=POLL_SECONDS):
            return True
    except OSError:
        return False
