"""Trials on a Ray cluster: each is a task, which runs a process on a machine that has room.

The sweep and the tasks share a small actor, the board: tasks pin reports to it, the sweep answers. If a machine is
lost, Ray runs the task again elsewhere, and the trial continues from its checkpoint.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from prototrain.distributed.ray import connect_ray, make_board
from prototrain.experiment.lock import LOCK, is_locked
from prototrain.sweeps.processes import TICK_SECONDS, Ending, answer, run_process
from prototrain.sweeps.study import Trial
from prototrain.system.waiting import PATIENCE_SECONDS

_TRIES: Final = 10
_KILLS: Final = (signal.SIGHUP, signal.SIGKILL, signal.SIGTERM)  # of machines that go down
_PASSED_ON: Final = ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL")  # of this machine's environment
_SAVING_SECONDS: Final = 90.0  # for a process on a lost machine to save and end


class OnRay:
    """Runs trials on a cluster, J at a time; see `RunTrial`. Enter it as a context manager.

    Makes the file `sign` in the trials' directory, which every machine must see. Raises as `connect_ray`.
    """

    def __init__(
        self, address: str, jobs: int, *, cpus: float, gpus: float, sign: Path, say: Callable[[str], None]
    ) -> None:
        self._address, self._sign, self._say = address, sign.absolute(), say
        self._is_ours = connect_ray(address, max(1, round(jobs * cpus)))
        import ray

        self._environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if gpus % 1:  # a trial with a part of a GPU must not take all of its memory
            self._environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        self._board = make_board(_Board)
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=_TRIES, retry_exceptions=[_LostError])(_work)

    def __enter__(self) -> OnRay:
        self._sign.touch()
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        self._sign.unlink(missing_ok=True)
        if self._is_ours:
            ray.shutdown()

    def __call__(self, trial: Trial, arguments: list[str], gpus: str | None, stop: threading.Event) -> Ending:
        import ray

        board, number, begin = self._board, trial.number, time.monotonic()
        order = {
            "arguments": arguments,
            "environment": self._environment,
            "directory": os.getcwd(),
            "sign": str(self._sign),
            "lock": str((trial.experiment.directory / LOCK).absolute()),
        }
        result, tries, is_told, is_said = self._task.remote(board, number, order), 1, False, False
        while not ray.wait([result], timeout=TICK_SECONDS)[0]:
            starts = ray.get(board.starts.remote(number))
            if (report := ray.get(board.take.remote("report", number))) is not None:
                board.pin.remote("answer", number, answer(trial, report))
            if starts > tries:
                tries = starts
                self._say(f"trial {number} is lost with its machine; it is started again elsewhere")
            if not starts and not is_said and time.monotonic() - begin > PATIENCE_SECONDS:
                is_said = True
                self._say(f"trial {number} waits for room on {self._address}")
            if stop.is_set() and not is_told:
                is_told = True
                board.pin.remote("stop", number, b"")
                if not starts:
                    ray.cancel(result)
        try:
            code, output = ray.get(result)
        except (_LostError, ray.exceptions.RayError):
            return -signal.SIGKILL, ""
        return code, output


class _LostError(Exception):
    """The process of a trial was killed, as those of a machine that goes down are."""


class _Board:
    """See the module; an actor. What is pinned for a trial is its report, its answer, or a request to stop."""

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}
        self._pinned: dict[tuple[str, int], bytes] = {}

    def begin(self, number: int) -> None:
        self._starts[number] = self._starts.get(number, 0) + 1
        for kind in ("report", "answer"):
            self._pinned.pop((kind, number), None)

    def starts(self, number: int) -> int:
        return self._starts.get(number, 0)

    def pin(self, kind: str, number: int, content: bytes) -> None:
        self._pinned[kind, number] = content

    def take(self, kind: str, number: int) -> bytes | None:
        return self._pinned.get((kind, number)) if kind == "stop" else self._pinned.pop((kind, number), None)


def _work(board: Any, number: int, order: dict[str, Any]) -> Ending:
    """Run a trial, as a task."""
    import ray

    def is_stopped() -> bool:
        return ray.get(board.take.remote("stop", number)) is not None

    def report(text: bytes) -> bytes:
        ray.get(board.pin.remote("report", number, text))
        while (found := ray.get(board.take.remote("answer", number))) is None:
            time.sleep(TICK_SECONDS / 4)
        return bytes(found)

    ray.get(board.begin.remote(number))
    if os.path.isdir(order["directory"]):
        os.chdir(order["directory"])
    if not os.path.exists(order["sign"]):
        where = f"{os.uname().nodename} does not see {order['sign']}"
        return 1, f"prototrain: error: {where}: set trainer.experiment_base_dir to storage that all share"
    end = time.monotonic() + _SAVING_SECONDS
    while is_locked(Path(order["lock"])) and time.monotonic() < end:
        time.sleep(TICK_SECONDS)
    environment = {**os.environ, **order["environment"]}
    code, output = run_process("spawn", order["arguments"], environment, report, is_stopped)
    if any(code in (-signum, 128 + signum) for signum in _KILLS) and not is_stopped():
        raise _LostError
    return code, output
