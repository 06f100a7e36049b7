"""Trials on a Ray cluster. Each trial has an actor, which runs its process on a machine that has room.

If the machine is lost, the trial gets another actor elsewhere and continues from its checkpoint.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final

from prototrain.distributed.ray import connect_ray
from prototrain.experiment.lock import LOCK, is_locked
from prototrain.sweeps.processes import KILLS, TICK_SECONDS, Ending, answer, run_process
from prototrain.sweeps.study import Trial
from prototrain.system.terminal import PATIENCE_SECONDS, say

_TRIES: Final = 10
_PASSED_ON: Final = ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL")  # environment variables of this machine
_SAVING_SECONDS: Final = 90.0  # for a process on a lost machine to save and end


class OnRay:
    """Runs trials on a cluster; see `RunTrial`. Use it as a context manager.

    Args:
        address: the address of the cluster, as for `connect_ray`.
        jobs: the number of trials that run at the same time.
        cpus: the number of CPUs for each trial.
        gpus: the number of GPUs for each trial, or a fraction of one.
        sign: a path that every machine must see.

    Raises:
        ConfigError, ClusterError: see `connect_ray`.
    """

    def __init__(self, address: str, jobs: int, *, cpus: float, gpus: float, sign: Path) -> None:
        self._address, self._sign = address, sign.absolute()
        self._is_ours = connect_ray(address, max(1, round(jobs * cpus)))
        import ray

        self._environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if gpus % 1:  # a trial with a fraction of a GPU must not take all of its memory
            self._environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        self._actor = ray.remote(num_cpus=cpus, num_gpus=gpus, max_concurrency=4)(_Runner)

    def __enter__(self) -> OnRay:
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        if self._is_ours:
            ray.shutdown()

    def __call__(self, trial: Trial, arguments: list[str], gpus: str | None, stop: threading.Event) -> Ending:
        import ray

        order = {
            "arguments": arguments,
            "environment": self._environment,
            "directory": os.getcwd(),
            "sign": str(self._sign),
            "lock": str((trial.experiment.directory / LOCK).absolute()),
        }
        for again in range(_TRIES):
            if again:
                say(f"trial {trial.number} is lost with its machine; it is started again elsewhere")
            runner = self._actor.remote()
            try:
                code, output = self._run(runner, trial, order, stop)
                if stop.is_set() or not any(code in (-signum, 128 + signum) for signum in KILLS):
                    return code, output  # otherwise it was killed, for example because the machine shuts down
            except ray.exceptions.RayError:
                if stop.is_set():
                    break
            finally:
                ray.kill(runner)
        return -signal.SIGKILL, ""

    def _run(self, runner: Any, trial: Trial, order: dict[str, Any], stop: threading.Event) -> Ending:
        import ray

        is_there, begin, is_said = runner.take.remote(), time.monotonic(), False
        while not ray.wait([is_there], timeout=TICK_SECONDS)[0]:
            if stop.is_set():
                return -signal.SIGTERM, ""
            if not is_said and time.monotonic() - begin > PATIENCE_SECONDS:
                is_said = True
                say(f"trial {trial.number} waits for room on {self._address}")
        result = runner.run.remote(order)
        while not ray.wait([result], timeout=0)[0]:
            if stop.is_set():
                runner.stop.remote()
            if (report := ray.get(runner.take.remote())) is not None:
                runner.answer.remote(answer(trial, report))
        code, output = ray.get(result)
        return code, output


class _Runner:
    """An actor that runs the process of a trial."""

    def __init__(self) -> None:
        self._reports: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stop = threading.Event()

    def take(self) -> bytes | None:
        """Return the next report of the process, or None if there is none soon."""
        try:
            return self._reports.get(timeout=TICK_SECONDS)
        except queue.Empty:
            return None

    def answer(self, text: bytes) -> None:
        """Answer a report."""
        self._answers.put(text)

    def stop(self) -> None:
        """Make the process save and stop."""
        self._stop.set()
        self._answers.put(b"false")

    def run(self, order: dict[str, Any]) -> Ending:
        """Run the process to its end."""

        def report(text: bytes) -> bytes:
            self._reports.put(text)
            return self._answers.get()

        if os.path.isdir(order["directory"]):
            os.chdir(order["directory"])
        if not os.path.exists(order["sign"]):
            where = f"{os.uname().nodename} does not see {order['sign']}"
            return 1, f"prototrain: error: {where}: set trainer.experiment_base_dir to storage that all share"
        end = time.monotonic() + _SAVING_SECONDS
        while is_locked(Path(order["lock"])) and time.monotonic() < end:
            time.sleep(TICK_SECONDS)
        environment = {**os.environ, **order["environment"]}
        return run_process("spawn", order["arguments"], environment, report, self._stop.is_set)
