"""Where workers run: what a supervisor needs to know of it, and this machine as the simplest such place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from prototrain.cluster.host import Host, Output, Process, StartProcess, State
from prototrain.errors import ConfigError
from prototrain.system.preloaded import Preloaded

_NVIDIA = Path("/proc/driver/nvidia/gpus")


class Lost(Exception):
    """The machine of a seat is gone before its worker was started."""


class Seat(Protocol):
    """A place for one worker: a `Host`, here or elsewhere. `address` and `start` raise `Lost`, the others do not."""

    def address(self) -> str: ...

    def start(
        self, order: Mapping[str, Any], environment: Mapping[str, str], output: Output, size: Any = None
    ) -> None: ...

    def poll(self) -> State: ...

    def signal(self, signum: int) -> None: ...

    def end(self) -> None: ...


class Places(Protocol):
    """Seats for workers.

    Attributes:
        passes_output: whether what a worker prints comes by way of the supervisor.
    """

    passes_output: bool

    def take(self, is_over: Callable[[], bool], shares: int | None) -> Sequence[Seat]:
        """Get a seat for each worker, or for as many as there is room for.

        Args:
            is_over: whether nobody wants them any more; then what is returned does not count.
            shares: what their number must divide, if that is known.
        """

    def has_more_room(self) -> bool:
        """Whether there is room for all by now, where there was not for as many as were taken."""

    def close(self) -> None:
        """Give everything back."""


class _HereSeat(Host):
    def __init__(self, environment: Mapping[str, str], start_process: StartProcess) -> None:
        super().__init__(start_process)
        self.environment = environment

    def start(self, order: Mapping[str, Any], environment: Mapping[str, str], output: Output, size: Any = None) -> None:
        super().start(order, {**environment, **self.environment}, output, size)


class Here:
    """Processes on this machine.

    Args:
        workers: how many.
        gpus_per_worker: how many GPUs each gets for itself; None to let each have all that can be seen.

    Raises:
        ConfigError: there are not as many GPUs.
    """

    passes_output = False

    def __init__(self, workers: int, gpus_per_worker: int | None = None) -> None:
        self._preloaded = Preloaded()
        self._environments: list[dict[str, str]] = [{} for _ in range(workers)]
        if gpus_per_worker is None:
            return
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        found = _installed() if named is None else [name for name in named.split(",") if name.strip() not in ("", "-1")]
        if len(found) < workers * gpus_per_worker:
            raise ConfigError(
                f"{workers} workers with {gpus_per_worker} GPUs each need {workers * gpus_per_worker}, and this "
                f"machine has {len(found)} that can be seen"
            )
        for index, environment in enumerate(self._environments):
            own = found[index * gpus_per_worker : (index + 1) * gpus_per_worker]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own) or "-1"

    def take(self, is_over: Callable[[], bool], shares: int | None) -> Sequence[Seat]:
        return [_HereSeat(environment, self._start_process) for environment in self._environments]

    def _start_process(self, descriptor: int, stdout: int | None, environment: Mapping[str, str]) -> Process:
        # TensorFlow is imported once, for all workers and all restarts.
        return self._preloaded.start(
            "prototrain.cluster.work:program",
            [str(descriptor)],
            environment=environment,
            stdout=stdout,
            descriptors=[descriptor],
        )

    def has_more_room(self) -> bool:
        return False

    def close(self) -> None:
        self._preloaded.close()


def _installed() -> list[str]:
    return [str(index) for index, _ in enumerate(_NVIDIA.iterdir())] if _NVIDIA.is_dir() else []
