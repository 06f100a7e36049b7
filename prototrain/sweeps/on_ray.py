"""Trials on a Ray cluster. Each trial has an actor, which runs its process on a machine that has room.

If the machine is lost, the trial gets another actor elsewhere and continues from its checkpoint.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from prototrain.distributed.ray import ray_cluster
from prototrain.experiment.lock import LOCK, is_locked
from prototrain.sweeps.processes import KILLS, TICK_SECONDS, Ending, RunTrial, answer, run_process
from prototrain.sweeps.study import Trial
from prototrain.system.terminal import announcing, say

_TRIES: Final = 10
_PASSED_ON: Final = ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL")  # environment variables of this machine
_SAVING_SECONDS: Final = 90.0  # for a process on a lost machine to save and end


@contextmanager
def on_ray(address: str, jobs: int, *, cpus: float, gpus: float, sign: Path) -> Iterator[RunTrial]:
    """Provide a `RunTrial` on a cluster (see `ray_cluster`), all of whose machines must see the path `sign`."""
    order = {"directory": os.getcwd(), "sign": str(sign.absolute())}
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if gpus % 1:  # a trial with a fraction of a GPU must not take all of its memory
        environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"

    with ray_cluster(address, max(1, round(jobs * cpus))):
        import ray

        actor = ray.remote(num_cpus=cpus, num_gpus=gpus, max_concurrency=4)(_Runner)

        def run(trial: Trial, arguments: list[str], _: str | None, stop: threading.Event) -> Ending:
            lock = str((trial.experiment.directory / LOCK).absolute())
            of_trial = {**order, "environment": environment, "arguments": arguments, "lock": lock}
            for again in range(_TRIES):
                if again:
                    say(f"trial {trial.number} is lost with its machine; it is started again elsewhere")
                runner = actor.remote()
                try:
                    code, output = _run(runner, trial, of_trial, stop)
                    if stop.is_set() or not any(code in (-signum, 128 + signum) for signum in KILLS):
                        return code, output  # otherwise it was killed, for example because the machine shuts down
                except ray.exceptions.RayError:
                    if stop.is_set():
                        break
                finally:
                    ray.kill(runner)
            return -signal.SIGKILL, ""

        yield run


def _run(runner: Any, trial: Trial, order: dict[str, Any], stop: threading.Event) -> Ending:
    import ray

    is_there = runner.take.remote()
    with announcing(f"trial {trial.number} waits for room on the cluster", say):
        while not ray.wait([is_there], timeout=TICK_SECONDS)[0]:
            if stop.is_set():
                return -signal.SIGTERM, ""
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
        self._answers.put(text)

    def stop(self) -> None:
        self._stop.set()
        self._answers.put(b"false")

    def run(self, order: dict[str, Any]) -> Ending:
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
