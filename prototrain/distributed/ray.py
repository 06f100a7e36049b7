"""Workers on Ray Train, which places, monitors and restarts them.

The driver (`run`) and the workers share a small actor, the board. A worker posts its output and its failure there; the
driver posts the requests of signals. Ray restarts all workers after any error, but only the loss of a worker should
cause a restart. After any other error, the functions of all workers return normally, and the driver raises the error
that is on the board.
"""

from __future__ import annotations

import io
import json
import logging
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from prototrain.errors import ClusterError, ConfigError
from prototrain.experiment.experiment import STARTED
from prototrain.system.signals import StopRequest, in_thread
from prototrain.system.terminal import say

_LOCAL = "local"
_PORTS = range(12000, 32000)  # below the ephemeral ports, which other connections would take meanwhile
_POLL_SECONDS = 0.3
_ROOM_SECONDS = 30.0
_REACH_SECONDS = 10.0
_LAST_SECONDS = 45.0  # for saving after the driver is gone
_VERDICT_SECONDS = 5.0  # for the worker that caused a failure to post it on the board
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # by default, workers have a low priority
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without gpus_per_worker, each worker sees all GPUs
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "60",  # 10 minutes by default
    # The only limit if a worker is stopped while Ray starts it; 5 and 2 minutes by default.
    "RAY_grpc_client_keepalive_time_ms": "30000",
    "RAY_grpc_client_keepalive_timeout_ms": "30000",
}


class _Board:
    """The board; an actor. See the module."""

    def __init__(self) -> None:
        self._state: dict[str, Any] = {"starts": 0, "saves": 0, "has_begun": False}
        self._state |= dict.fromkeys(("signum", "failure", "cause"))
        self._printed: list[str] = []

    def start(self) -> None:
        self._state["starts"] += 1

    def read(self) -> dict[str, Any]:
        return {**self._state, "restarts": max(self._state["starts"] - 1, 0)}

    def pin(self, printed: str = "", **said: Any) -> None:
        """Post the output and the state of a worker. Only the first failure is kept."""
        self._printed.append(printed)
        if self._state["failure"] is not None:
            said.pop("failure", None)
        self._state |= {name: value for name, value in said.items() if value}

    def ask(self, signum: int | None, save: bool) -> None:
        self._state["signum"] = signum or self._state["signum"]
        self._state["saves"] += save

    def take_printed(self) -> str:
        text, self._printed = "".join(self._printed), []
        return text


def run(
    function: Callable[[], object],
    *,
    workers: int,
    cluster: str | None = None,
    gpus_per_worker: int | None = None,
    max_restarts: int = 10,
    min_workers: int | None = None,
) -> None:
    """Call a function in several processes that train together, and call it again when a process is lost.

    The function creates a `MultiWorkerTrainer` (`TF_CONFIG` is set) and trains with it. Each call continues from the
    newest checkpoint. The output of the workers is printed by this process.

    Args:
        function: a function of a module, or of a script that calls `run` under ``if __name__ == "__main__":``.
        workers: the number of processes.
        cluster: the address of a Ray cluster; None or "local" for one on this machine that lasts as long as the run.
        gpus_per_worker: the number of GPUs that are reserved for each worker; by default each worker sees all GPUs.
        max_restarts: how often the workers are restarted at most.
        min_workers: the smallest number of workers if the cluster has no room for all; by default `workers`.

    Raises:
        ClusterError: a worker failed, workers were lost more than `max_restarts` times, or the cluster is unreachable.
        ConfigError: an argument is wrong, or Ray is not installed.
        KeyboardInterrupt: after Ctrl-C, once everything is saved.
        SystemExit: after SIGTERM, SIGHUP or SIGXCPU, with exit code 128 + its number, once everything is saved.
    """
    if not 1 <= (workers if min_workers is None else min_workers) <= workers:
        raise ConfigError(f"workers must be at least 1, and min_workers at most as many; got {workers}, {min_workers}")
    if max_restarts < 0 or (gpus_per_worker or 0) < 0:
        raise ConfigError(f"max_restarts and gpus_per_worker must be at least 0, got {max_restarts}, {gpus_per_worker}")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with ray_cluster(cluster or _LOCAL, workers):
        import ray
        from ray.train import BackendConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.backend import Backend
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # On the node of the driver, so that the board survives the loss of another node.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()

        class Addresses(Backend):  # type: ignore[misc]
            def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
                import ray

                addresses = worker_group.execute(_address)
                for index in range(len(addresses)):
                    worker_group.execute_single(index, _set_tf_config, addresses, index)
                ray.get(board.start.remote())

        class Config(BackendConfig):  # type: ignore[misc]
            backend_cls = Addresses

        order = {
            "function": function,
            "board": board,
            "directory": os.getcwd(),
            "path": sys.path,
            "arguments": sys.argv,
            "started": time.strftime("%Y%m%d-%H%M%S"),
        }
        with tempfile.TemporaryDirectory(prefix="prototrain-ray-", ignore_cleanup_errors=True) as directory:
            trainer = DataParallelTrainer(
                _work,
                train_loop_config=order,
                backend_config=Config(),
                scaling_config=ScalingConfig(
                    num_workers=workers if min_workers in (None, workers) else (min_workers, workers),
                    use_gpu=bool(gpus_per_worker),
                    resources_per_worker={"CPU": 1.0, **({"GPU": float(gpus_per_worker)} if gpus_per_worker else {})},
                    placement_strategy="SPREAD",
                ),
                run_config=RunConfig(
                    name="workers", storage_path=directory, failure_config=FailureConfig(max_failures=max_restarts)
                ),
            )
            _drive(board, trainer.fit, workers, max_restarts)


def _drive(board: Any, fit: Callable[[], object], workers: int, max_restarts: int) -> None:
    """Wait for the workers, forward signals, print their output, and raise the error that ends the run."""
    import ray

    restarts, is_told, is_said, begin = 0, False, False, time.monotonic()

    def look() -> dict[str, Any]:
        nonlocal restarts
        state: dict[str, Any]
        state, printed = ray.get([board.read.remote(), board.take_printed.remote()])
        sys.stdout.write(printed)
        sys.stdout.flush()
        if state["restarts"] > restarts:
            restarts = state["restarts"]
            count = f"(restart {restarts} of at most {max_restarts})"
            say(f"{state['cause'] or 'a worker is gone'}; all workers start again from the newest checkpoint {count}")
        return state

    stop = StopRequest(say)
    with stop:
        # In a thread: on the main thread, Ray would handle Ctrl-C and kill the workers before they have saved.
        fitted = in_thread(fit, "ray-train")
        while not fitted.done():
            wait([fitted], _POLL_SECONDS)
            save, signum = stop.pop_save_request(), None if is_told else stop.signum
            if save or signum:
                board.ask.remote(signum, save)
            is_told = stop.signum is not None
            if not look()["starts"]:
                if is_told:
                    break  # nothing has begun
                if not is_said and time.monotonic() - begin > _ROOM_SECONDS:
                    is_said = True
                    say(f"waiting for room for {workers} workers ...")
    state = look()
    if state["failure"] is not None:
        name, text, details = state["failure"]
        if details:
            say(details, to_stderr=True)
        raise ClusterError(f"{name} failed: {text}")
    stop.check()
    if (error := fitted.exception()) is not None:
        why = state["cause"] or " ".join(str(error).split())
        raise ClusterError(f"the run has ended after {state['restarts']} restarts: {why}") from error


def _address() -> str:
    import ray

    host = ray.util.get_node_ip_address()
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
            one.bind(("", port))
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    raise ClusterError(f"{host} has no free port from {_PORTS[0]} to {_PORTS[-1]}")


def _set_tf_config(addresses: list[str], index: int) -> None:
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})


class _Output(io.TextIOBase):
    """Collects the output of a worker for the board."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._texts: list[str] = []

    def write(self, text: str) -> int:
        self._texts.append(text)
        return len(text)

    def take(self) -> str:
        texts, self._texts = self._texts, []
        return "".join(texts)


def _work(order: dict[str, Any]) -> None:
    """Call the function in a worker, with the directory, the path and the arguments of the driver."""
    import ray

    board, output = order["board"], _Output()
    if os.path.isdir(order["directory"]):
        os.chdir(order["directory"])
    sys.path[:0] = [path for path in order["path"] if path not in sys.path]
    sys.argv = order["arguments"]
    os.environ[STARTED] = order["started"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stdout = output

    from prototrain.distributed.cluster import find_cluster
    from prototrain.distributed.sync import is_of_peers, launcher
    from prototrain.system.tracebacks import for_terminal, in_one_line

    state = ray.get(board.read.remote())
    if state["failure"] is not None or state["signum"] is not None:
        return
    launcher.restarts, launcher.has_begun = state["restarts"], state["has_begun"]
    launcher.cause = state["cause"] or "a worker is gone"

    def exchange() -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            try:
                board.pin.remote(output.take(), has_begun=launcher.has_begun)
                now = ray.get(board.read.remote())
            except ray.exceptions.RayError:  # the driver is gone, and so is the board
                launcher.signum = signal.SIGTERM
                time.sleep(_LAST_SECONDS)
                os._exit(128 + signal.SIGTERM)
            launcher.signum, launcher.saves = now["signum"], now["saves"]

    threading.Thread(target=exchange, name="board", daemon=True).start()
    worker = find_cluster()[1]
    failure: Any = None
    try:
        order["function"]()
    except Exception as error:
        if is_of_peers(error):
            board.pin.remote(cause=" ".join(str(error).split()))
            end = time.monotonic() + _VERDICT_SECONDS
            while ray.get(board.read.remote())["failure"] is None:
                if time.monotonic() > end:
                    raise  # a worker is gone: Ray restarts all
                time.sleep(_POLL_SECONDS)
        else:
            details = for_terminal(error)
            is_said = details.startswith("prototrain: error:")
            failure = worker.name(worker.index), in_one_line(error), "" if is_said else details
    except (KeyboardInterrupt, SystemExit) as error:
        code = getattr(error, "code", None)
        if launcher.signum is None and code not in (None, 0):
            failure = worker.name(worker.index), f"it ended with exit code {code}", ""
    finally:
        ray.get(board.pin.remote(output.take(), failure=failure))


@contextmanager
def ray_cluster(address: str, cpus: int) -> Iterator[None]:
    """Connect this process with a Ray cluster for a block, unless it is connected already.

    The address "auto" is the cluster of this machine, and "local" a new one with `cpus` CPUs that lasts as long as the
    block.

    Raises:
        ConfigError: Ray is not installed.
        ClusterError: there is no such cluster, or it cannot be reached.
    """
    if find_spec("ray") is None:
        raise ConfigError("several workers need Ray, which is not installed: pip install 'prototrain[ray]'")
    with warnings.catch_warnings(action="ignore"):
        import ray
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {}
    if address == _LOCAL:
        options = {"num_cpus": cpus, "include_dashboard": False}
        for name in ("RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness"):
            os.environ.setdefault(name, _ENVIRONMENT[name])
    try:
        if re.fullmatch(r"[^/]+:\d+", address):
            # Ray would try for a minute and then end this process.
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
        with warnings.catch_warnings(action="ignore"):
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises a plain Exception if its processes do not start in time
        said = " ".join(str(error).split())
        raise ClusterError(f"there is no Ray cluster at {address!r} that this process can reach: {said}") from error
    try:
        yield
    finally:
        ray.shutdown()
