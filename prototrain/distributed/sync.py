"""Communication between the workers of a run: all-reduced numbers between two compiled calls, and errors.

If a worker is gone or stopped, TensorFlow makes the collective operations of all others fail. A worker that fails with
an error reports it to the others in the same way. A timer ends a worker that is alive but completes no step.
"""

from __future__ import annotations

import faulthandler
import json
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from prototrain.distributed.cluster import Worker, is_lost
from prototrain.errors import ClusterError
from prototrain.system.signals import StopRequest, in_thread
from prototrain.system.tracebacks import in_one_line
from prototrain.tf_private import report_to_cluster

FIRST_STALL_SECONDS = 1800.0  # at least, for the first call, which includes tracing
ENDED_SECONDS = 10.0
REPORT_SECONDS = 3.0
_WORDS = re.compile(r"<<(.*?)>>", re.DOTALL)
_SILENT = re.compile(r"unhealthy \(stopped sending heartbeats\):\s*/job:(\w+)\S*/task:(\d+)")
_UNREACHABLE = re.compile(r"remote target /job:(\w+)\S*/task:(\d+)")
_ENDED = -1


@dataclass
class Launcher:
    """The state that `prototrain.distributed.run` shares with the worker in this process."""

    restarts: int = 0  # of all workers
    cause: str | None = None  # of the last restart
    has_begun: bool = False  # whether a worker of this or an earlier start has begun to train
    signum: int | None = None  # the signal that ends the run
    saves: int = 0  # the number of requests to save so far


launcher = Launcher()


class AgreedStop(StopRequest):
    """A stop request that takes effect only when all workers know of it."""

    def _reset(self) -> None:
        super()._reset()
        self.wanted: int | None = None

    def request(self, signum: int) -> None:
        if self.wanted is None:
            self.wanted = signum

    def agree(self, signum: int) -> None:
        """Let the stop take effect, because all workers know of it."""
        super().request(signum if self.wanted is None else self.wanted)


@dataclass(frozen=True)
class Agreement:
    """The state that all workers agree on before a call."""

    steps: int  # that all workers can do
    places: list[tuple[int, int]]  # (completed steps, batches read) of each worker
    rates: list[float]  # the learning rate of each worker
    save: bool  # whether a worker was asked to save
    signum: int | None  # a stop signal that a worker received
    ended: int | None  # the index of a worker that ends the run at this step


class WorkerSync:
    """Connects the trainer in this process with the trainers of the other workers.

    The process ends itself after `stall_timeout` seconds without an agreement.
    """

    def __init__(self, strategy: tf.distribute.Strategy, worker: Worker, stall_timeout: float) -> None:
        self.worker = worker
        self._stall_timeout = stall_timeout
        self._has_agreed = False
        self._saves = launcher.saves
        towers = strategy.num_replicas_in_sync // worker.count

        def add(table: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            is_first = tf.equal(context.replica_id_in_sync_group % towers, 0)
            return context.all_reduce("sum", table * tf.cast(is_first, table.dtype))

        def add_all(table: tf.Tensor) -> tf.Tensor:
            return strategy.experimental_local_results(strategy.run(add, (table,)))[0]

        self._add_all = tf.function(add_all, autograph=False, reduce_retracing=True)

    def gather(self, row: Sequence[int]) -> list[list[int]]:
        """Return the integers of each worker. All workers must call this with the same number of integers."""
        table = np.zeros([self.worker.count, len(row)], np.int64)
        table[self.worker.index] = row
        with self.failing_together():
            found: list[list[int]] = self._add_all(table).numpy().tolist()
            return found

    def exchange(self, value: Any) -> list[Any]:
        """Return the JSON value of each worker; see `gather`."""
        text = json.dumps(value).encode()
        longest = max(row[0] for row in self.gather([len(text)]))
        return [json.loads(bytes(row)) for row in self.gather([*text.ljust(longest)])]

    def agree(
        self,
        n: int,
        *,
        step: int,
        batches: int,
        rate: float = 0.0,
        save: bool = False,
        signum: int | None = None,
        ended: bool = False,
        data_ended: bool = False,
    ) -> Agreement:
        """Exchange the state of this worker with the others, and return the state that all agree on.

        See `Agreement` for the arguments; `data_ended` tells that the last call reached the end of the data, which must
        happen on all workers.
        """
        save, self._saves = save or launcher.saves != self._saves, launcher.saves
        code = signum or launcher.signum or (_ENDED if ended else 0)
        # Print the stacks and end this process if the next agreement does not come in time.
        seconds = self._stall_timeout if self._has_agreed else max(self._stall_timeout, FIRST_STALL_SECONDS)
        self._has_agreed = True
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)
        # Fail on all workers if the others are still in a call that this worker has no data for.
        words = f"{self.worker.name(self.worker.index)} ran out of training data behind step {step}, and others did not"
        late = threading.Timer(ENDED_SECONDS, report, (words,))
        late.daemon = True
        if data_ended:
            late.start()
        try:
            told = self.gather([n, step, batches, save, code, int(np.float64(rate).view(np.int64))])
        finally:
            late.cancel()
        signals = [row[4] for row in told if row[4] > 0]
        left = [index for index, row in enumerate(told) if row[4] == _ENDED]
        return Agreement(
            steps=min(row[0] for row in told),
            places=[(row[1], row[2]) for row in told],
            rates=[float(np.int64(row[5]).view(np.float64)) for row in told],
            save=any(row[3] for row in told),
            signum=signals[0] if signals else None,
            ended=left[0] if left else None,
        )

    def stop_watching(self) -> None:
        """Stop the timer of `agree`, because the run has ended."""
        faulthandler.cancel_dump_traceback_later()

    def wait_for_all(self) -> None:
        """Wait for all workers at the end of the run, because TensorFlow may still be reading from this process."""
        with suppress(ClusterError):
            self.gather([0])

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Make a block fail on all workers if it fails on one."""
        try:
            yield
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> NoReturn:
        """Report an error to the other workers, and raise it."""
        if isinstance(error, ClusterError):
            raise error
        if not is_of_peers(error):
            words = in_one_line(error) if isinstance(error, Exception) else f"stopped by {type(error).__name__}"
            report(f"{self.worker.name(self.worker.index)} failed: {words}")
            raise error
        words = self._words("\n".join(map(str, _chain(error))))
        report(words)  # faster than a missed heartbeat
        raise ClusterError(words) from error

    def _words(self, text: str) -> str:
        if said := _WORDS.search(text):
            return " ".join(said[1].split())
        if (found := _SILENT.search(text)) or (found := _UNREACHABLE.search(text)):
            index = int(found[2]) + (self.worker.chiefs if found[1] == "worker" else 0)
            return f"{self.worker.name(index)} is gone or does not answer"
        return f"the connection between the workers broke; the chief is {self.worker.name(0)}"


def report(words: str) -> None:
    """Make all workers fail with this message."""
    is_lost.set()
    # In a thread, because the call does not return if the chief does not answer.
    wait([in_thread(lambda: report_to_cluster(f"<<{words}>>"), "report")], REPORT_SECONDS)


def is_of_peers(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, was raised because another worker is gone or has failed."""
    return any(
        isinstance(one, ClusterError) or (isinstance(one, tf.errors.OpError) and "ollective" in str(one))
        for one in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
