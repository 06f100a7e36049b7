"""A Ray cluster as a place for workers.

Ray gives room: a placement group with a bundle for each worker, and in each bundle an actor, which is a `Host` and
starts the worker's process as one on this machine is started. The process is not the actor's own, because TensorFlow
connects workers once in a process, and because signals, exit codes and crashes are then what they are everywhere.

Room for those that are missing is asked for with a second placement group, which is pending until nodes are back; an
autoscaler sees it, too.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prototrain.cluster.addresses import host_and_port
from prototrain.cluster.host import Host, Output, State, free_port
from prototrain.cluster.places import Lost, Seat
from prototrain.errors import ClusterError, ConfigError
from prototrain.system.terminal import say
from prototrain.system.waiting import PATIENCE_SECONDS

ROOM_SECONDS = 30.0  # to wait for room for all before there are fewer
_FEWER_SECONDS = 3.0
_START_SECONDS = 120.0  # for an actor to be there
_REACH_SECONDS = 10.0
_LOCAL = "local"


class _Agent(Host):
    """A `Host` in an actor."""

    def address(self) -> str:
        import ray

        host = ray.util.get_node_ip_address()
        return f"[{host}]:{free_port()}" if ":" in host else f"{host}:{free_port()}"


class RaySeat:
    """A `Host` on the cluster.

    Args:
        actor: that runs it.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._state = State()
        self._asked: Any = None
        self._answered = time.monotonic()

    def address(self) -> str:
        return str(self._get(self._actor.address.remote(), _START_SECONDS))

    def start(self, order: Mapping[str, Any], environment: Mapping[str, str], output: Output, size: Any = None) -> None:
        self._state, self._answered = State(), time.monotonic()
        self._get(self._actor.start.remote(dict(order), dict(environment), output, size), _START_SECONDS)

    def poll(self) -> State:
        import ray

        if self._state.has_ended:
            self._state.output = b""
            return self._state
        if self._asked is None:
            self._asked = self._actor.poll.remote()
        ready, _ = ray.wait([self._asked], timeout=0)
        if ready:
            self._asked = None
            try:
                self._state, self._answered = ray.get(ready[0]), time.monotonic()
            except ray.exceptions.RayError:
                self._state.is_lost, self._state.output = True, b""
        else:
            self._state.output = b""
            self._state.silent = time.monotonic() - self._answered
        return self._state

    def signal(self, signum: int) -> None:
        self._actor.signal.remote(signum)
        # Nobody kills where no answer comes from.
        if signum == 9 and time.monotonic() - self._answered > _FEWER_SECONDS:
            self._state.is_lost = True

    def end(self) -> None:
        import ray

        with suppress(Lost):
            if not self._state.is_lost:
                self._get(self._actor.end.remote(), _FEWER_SECONDS)
        with suppress(ray.exceptions.RayError):
            ray.kill(self._actor)

    def _get(self, asked: Any, seconds: float) -> Any:
        import ray

        try:
            return ray.get(asked, timeout=seconds)
        except ray.exceptions.RayError as error:  # a timeout among them
            raise Lost(str(error)) from error


class OnRay:
    """Room for workers on a Ray cluster.

    Args:
        address: of the cluster; "auto" for the one that this machine is part of, "local" for one that lives as long
            as this process.
        workers: how many.
        least: with how many to be content after a while.
        gpus_per_worker: how many GPUs each gets for itself.

    Raises:
        ConfigError: Ray is not installed.
        ClusterError: there is no cluster at the address.
    """

    passes_output = True

    def __init__(
        self,
        address: str,
        workers: int,
        least: int,
        gpus_per_worker: int | None = None,
    ) -> None:
        self._address, self._workers, self._least = address, workers, least
        self._bundle: dict[str, float] = {"CPU": 1.0, **({"GPU": float(gpus_per_worker)} if gpus_per_worker else {})}
        self._group: Any = None
        self._spare: Any = None
        self._is_ours = connect(address, workers)

    def take(self, is_over: Callable[[], bool], shares: int | None) -> Sequence[Seat]:
        self._release()
        count = self._make_room(is_over, shares)
        if count == 0:
            return []
        if count < self._workers:
            say(f"there is room for {count} of {self._workers} workers on {self._address}; going on with them")
            self._spare = self._ask_for(self._workers - count)
        return [RaySeat(self._actor(index)) for index in range(count)]

    def has_more_room(self) -> bool:
        return self._spare is not None and _is_ready(self._spare, 0.0)

    def close(self) -> None:
        import ray

        self._release()
        if self._is_ours:
            ray.shutdown()

    def _make_room(self, is_over: Callable[[], bool], shares: int | None) -> int:
        """Wait for room; returns for how many there is."""
        begin, has_said = time.monotonic(), False
        self._group = self._ask_for(self._workers)
        while not is_over():
            if _is_ready(self._group, 0.3):
                return self._workers
            waited = time.monotonic() - begin
            if waited > PATIENCE_SECONDS and not has_said:
                has_said = True
                each = " and ".join(f"{amount:g} {name}" for name, amount in self._bundle.items())
                say(f"waiting for room for {self._workers} workers on {self._address}, with {each} each ...")
            if self._least < self._workers and waited > ROOM_SECONDS:
                _remove(self._group)
                if (count := self._make_room_for_fewer(shares)) > 0:
                    return count
                begin, self._group = time.monotonic(), self._ask_for(self._workers)
        return 0

    def _make_room_for_fewer(self, shares: int | None) -> int:
        import ray

        free = ray.available_resources()
        fits = min(int(free.get(name, 0.0) // amount) for name, amount in self._bundle.items())
        for count in range(min(fits, self._workers - 1), self._least - 1, -1):
            if shares is not None and shares % count:
                continue  # the global batch, which stays, does not divide
            self._group = self._ask_for(count)
            if _is_ready(self._group, _FEWER_SECONDS):
                return count
            _remove(self._group)
        return 0

    def _ask_for(self, count: int) -> Any:
        import ray

        return ray.util.placement_group([self._bundle] * count, strategy="SPREAD")

    def _actor(self, index: int) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        scheduling = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        agent = ray.remote(
            num_cpus=self._bundle["CPU"], num_gpus=self._bundle.get("GPU", 0), scheduling_strategy=scheduling
        )(_Agent)
        return agent.remote()

    def _release(self) -> None:
        for group in (self._group, self._spare):
            if group is not None:
                _remove(group)
        self._group = self._spare = None


def connect(address: str, cpus: int) -> bool:
    """Be connected with a cluster; returns whether this process was not before.

    Args:
        address: see `OnRay`.
        cpus: what a cluster that lives as long as this process counts for.

    Raises:
        ConfigError: Ray is not installed.
        ClusterError: there is none.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("a cluster needs Ray, which is not installed: pip install 'prototrain[ray]'") from error
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if address == _LOCAL else {}
    if address == _LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # by default its workers give way to all other processes (15)
    try:
        if re.fullmatch(r"[^/]+:\d+", address):
            # Ray itself would try for a minute, and then end this process.
            socket.create_connection(host_and_port(address), _REACH_SECONDS).close()
        with warnings.catch_warnings(action="ignore"):
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises it bare where its own processes do not start in time
        said = " ".join(str(error).split())
        raise ClusterError(f"there is no Ray cluster at {address!r} that this process can reach: {said}") from error
    return True


def _is_ready(group: Any, seconds: float) -> bool:
    return bool(group.wait(timeout_seconds=seconds))


def _remove(group: Any) -> None:
    import ray

    with suppress(ray.exceptions.RayError):
        ray.util.remove_placement_group(group)
