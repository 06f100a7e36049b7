"""Starts a group of workers, watches it, and starts it again from the newest checkpoint when one of them is lost.

The supervisor imports no TensorFlow and knows nothing of training: it has seats for workers
(`prototrain.cluster.places`), gives each process a function to call and its ``TF_CONFIG``, hears from each twice a
second how far it is, and reads its exit code. What the workers find out about each other (`prototrain.cluster.hub`) is
theirs; here it is only decided whether a group that has ended was at its end.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from prototrain.cluster.group_watch import TICK_SECONDS, GroupWatch, Limits, PassedOn
from prototrain.cluster.healing import Healing, Verdict, describe
from prototrain.cluster.places import Here, Places
from prototrain.cluster.supervision import Group, own_supervision
from prototrain.cluster.work import pack
from prototrain.errors import ClusterError, ConfigError
from prototrain.system.terminal import say


def run(
    launch_function: Callable[[], object],
    *,
    workers: int,
    cluster: str | None = None,
    gpus_per_worker: int | None = None,
    max_restarts: int = 10,
    min_workers: int | None = None,
    stall_timeout: float | None = None,
) -> None:
    """Call a function in several processes that train together, and again when one of them is lost.

    The function makes a `MultiWorkerTrainer` (`TF_CONFIG` is set) and trains with it; each call goes on from the newest
    checkpoint. The chief's output is this program's; of the others it is shown when they fail.

    Args:
        launch_function: of a module, or of a script that calls this under ``if __name__ == "__main__":``.
        workers: how many processes.
        cluster: the address of a Ray cluster; None for processes on this machine.
        gpus_per_worker: how many GPUs each gets for itself.
        max_restarts: how often they are started again.
        min_workers: with how many to go on where the cluster has no room for all; by default with all only.
        stall_timeout: seconds without a step after which a worker that has made its first counts as stuck; by default
            ``trainer.stall_timeout``.

    Raises:
        ClusterError: the workers have failed, and were not, or not again, started anew.
        ConfigError: an argument is wrong, or there are no such GPUs.
        KeyboardInterrupt: after Ctrl-C, once everything is saved.
        SystemExit: after SIGTERM, SIGHUP or SIGXCPU, with exit code 128 + its number, once everything is saved.
    """
    if own_supervision() is not None:
        raise ConfigError('a worker cannot start workers; call run() under `if __name__ == "__main__":`')
    least = workers if min_workers is None else min_workers
    if not 1 <= least <= workers:
        raise ConfigError(f"workers must be at least 1, and min_workers at most as many; got {workers} and {least}")
    if max_restarts < 0:
        raise ConfigError(f"max_restarts must be at least 0, got {max_restarts}")
    if stall_timeout is not None and stall_timeout <= 0:
        raise ConfigError(f"stall_timeout must be more than 0 seconds, got {stall_timeout:g}")
    order = pack(launch_function)
    places: Places = Here(workers, gpus_per_worker)
    if cluster is not None:
        from prototrain.cluster.on_ray import OnRay

        places = OnRay(cluster, workers, least, gpus_per_worker)
    try:
        supervisor = Supervisor(order, places, workers, Healing(max_restarts), stall_timeout=stall_timeout)
        with supervisor.signals:
            supervisor.run()
    finally:
        places.close()


class Supervisor:
    """See the module.

    Args:
        order: what workers are to do, see `prototrain.cluster.work`.
        places: where they run.
        workers: how many they are to be.
        healing: decides about restarts.
        stall_timeout: seconds after which a worker counts as stuck, if it is not what the config says.

    Attributes:
        signals: takes those of this process, while it is entered.
    """

    def __init__(
        self,
        order: dict[str, Any],
        places: Places,
        workers: int,
        healing: Healing,
        *,
        stall_timeout: float | None = None,
    ) -> None:
        self.signals = PassedOn()
        self._order, self._places, self._workers, self._healing = order, places, workers, healing
        self._stall_timeout = stall_timeout
        self._started = time.strftime("%Y%m%d-%H%M%S")
        self._cause: str | None = None
        self._shares: int | None = None

    def run(self) -> None:
        """Have the workers train until they are through, were asked to stop, or cannot go on.

        Raises:
            ClusterError: they cannot go on.
            KeyboardInterrupt, SystemExit: they were asked to stop.
        """
        while True:
            seats = self._places.take(self._is_stopped, self._shares)
            self.signals.check()
            with GroupWatch(seats, self._places, self.signals, Limits.of(self._stall_timeout)) as watch:
                watch.start(self._order, self._group(len(seats)), self._started)
                watch.until_the_end()
            if watch.states[0].code == 0:
                return
            if self._is_stopped():
                self._end_stopped(watch)
            if watch.is_for_more:
                self._cause = f"there is room for all {self._workers} workers again"
                say(f"{self._cause}; starting them from the newest checkpoint")
                continue
            self._heal(watch)

    def _heal(self, watch: GroupWatch) -> None:
        """Wait until the group is to be started again.

        Raises:
            ClusterError: it is not.
        """
        healing = self._healing
        verdict = healing.judge(watch.names, watch.states, watch.killed)
        self._shares = next((state.shares for state in watch.states if state.shares is not None), self._shares)
        self._show_output(watch, verdict)
        if verdict.is_over:
            more = f" {verdict.advice}" if verdict.advice else ""
            raise ClusterError(f"the run has ended{more}: {verdict.cause}")
        self._cause = verdict.cause
        say(
            f"{verdict.cause}; starting all workers again from the newest checkpoint in {healing.pause:g} s "
            f"(restart {healing.restarts} of at most {healing.max_restarts})"
        )
        end = time.monotonic() + healing.pause
        while time.monotonic() < end and not self._is_stopped():
            time.sleep(TICK_SECONDS)

    def _show_output(self, watch: GroupWatch, verdict: Verdict) -> None:
        """Show what the worker that is to blame has printed, where nobody has seen it."""
        state = watch.states[verdict.worker]
        tail = state.tail.strip()
        if tail and state.code != -signal.SIGKILL:
            say(f"\n{watch.names[verdict.worker]} has printed:\n{tail}\n", to_stderr=True)

    def _end_stopped(self, watch: GroupWatch) -> None:
        chief = watch.states[0]
        if chief.code == 1:  # it could not be saved, for example
            raise ClusterError(f"{watch.names[0]} {describe(chief)}")
        self.signals.check()

    def _group(self, workers: int) -> Group:
        return Group(
            workers=workers,
            wanted=self._workers,
            restarts=self._healing.restarts,
            cause=self._cause,
            goes_on=self._healing.has_begun,
            stall_timeout=self._stall_timeout,
        )

    def _is_stopped(self) -> bool:
        return self.signals.signum is not None
