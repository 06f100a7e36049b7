"""Which of a coordinator's processes this one is, from ``TF_CONFIG``: the chief, a worker or a parameter server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from prototrain.cluster import tf_config
from prototrain.cluster.addresses import host_and_port
from prototrain.cluster.hub import no_sign_of_life
from prototrain.cluster.waiting import Waiting
from prototrain.cluster.workers import ending_after, require_not_started
from prototrain.config.schema import SCHEMA
from prototrain.errors import ClusterError, ConfigError, StepError
from prototrain.system.signals import LeavingAtOnce, ignore_save_signals

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
_LOOKS, _BETWEEN_LOOKS = 10, 0.1  # how often, and seconds
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

    def require_alive_after(self, error: Exception) -> None:
        """As `require_alive`, once something has failed; a process that is being killed may answer for a moment more.

        Args:
            error: what has failed.
        """
        is_of_network = isinstance(error, tf.errors.UnavailableError | tf.errors.UnknownError | tf.errors.AbortedError)
        for _ in range(_LOOKS if is_of_network else 1):
            self.require_alive()
            time.sleep(_BETWEEN_LOOKS if is_of_network else 0)

    def silent(self) -> list[str]:
        """The workers and parameter servers that do not answer, in words; whoever is stopped lets others call only."""
        kinds = (("parameter server", "ps"), ("worker", "worker"))
        named = [(f"{word} {i} ({at})", at) for word, kind in kinds for i, at in enumerate(self.addresses[kind])]
        return [name for name, address in named if not _responds(address)]


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


_connections: list[tuple[tf.distribute.Strategy, ServerCluster]] = []


def connect(*, timeout: float | None = None) -> tuple[tf.distribute.Strategy, ServerCluster]:
    """Connect the chief with all others; once, before anything else makes TensorFlow start. Waits until all are there.

    Args:
        timeout: seconds to wait for them; by default that of ``trainer.cluster_timeout``.

    Raises:
        ConfigError: there is no description of the cluster, or TensorFlow has started already.
        ClusterError: somebody has not come in time.
    """
    if not _connections:
        cluster = find_servers()
        require_not_started("parameter servers", "prototrain.cluster.servers.connect()")
        seconds = SCHEMA["trainer.cluster_timeout"].default if timeout is None else timeout
        waiting = Waiting(seconds)
        while missing := cluster.silent():  # TensorFlow would wait for them without hearing a signal
            waiting.say_missing(missing)
            time.sleep(POLL_SECONDS / 4)
        with ending_after(seconds), LeavingAtOnce():
            resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
            _connections.append((tf.distribute.ParameterServerStrategy(resolver), cluster))
    return _connections[0]


def serve(
    *,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Do what the chief asks for, as a worker or parameter server, until it is gone.

    Args:
        timeout: seconds to wait for the chief to start, and for a sign of life of it; by default that of
            ``trainer.cluster_timeout``.
        clock: returns the time in seconds.
        sleep: waits for some seconds.

    Raises:
        ConfigError: this process cannot listen at its address.
        ClusterError: the chief does not come, or has given no sign of life for too long.
        SystemExit: the chief is gone.
    """
    seconds = SCHEMA["trainer.cluster_timeout"].default if timeout is None else timeout
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
    waiting = Waiting(seconds, clock=clock)
    heard = alive = None
    with ignore_save_signals():  # a signal to save may be sent to all processes, and only the chief saves
        while heard is None or clock() - heard < PATIENCE_SECONDS:
            if _answers(chief):
                heard = clock()
                alive = heard if alive is None or _responds(chief) else alive
                if heard - alive > seconds:
                    raise ClusterError(f"the chief at {chief}: {no_sign_of_life(seconds)}")
            elif heard is None:
                waiting.say_missing([f"the chief at {chief}"])
            sleep(POLL_SECONDS)
    print(f"the chief at {chief} is gone", flush=True)
    del server
    raise SystemExit(0)


def _answers(address: str) -> bool:
    try:
        with socket.create_connection(host_and_port(address), timeout=POLL_SECONDS):
            return True
    except OSError:
        return False


def _responds(address: str) -> bool:
    """Whether somebody is at work at an address: TensorFlow's server is the first to speak."""
    try:
        with socket.create_connection(host_and_port(address), timeout=POLL_SECONDS) as line:
            return bool(line.recv(1))
    except OSError:
        return False
