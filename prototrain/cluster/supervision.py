"""A worker's line to what has started it: how far it is, what it fails with; and it ends when that is gone."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from prototrain.errors import CallbackError, ClusterError, ConfigError, ModelError, NonFiniteError
from prototrain.system.forks import tell_of_forks
from prototrain.system.tracebacks import in_one_line

BEAT_SECONDS = 0.5
LAST_SECONDS = 60.0  # in which a worker whose supervisor is gone may save
# The same command meets these again, whatever became of the workers.
_LASTING = (CallbackError, ConfigError, ModelError, NonFiniteError)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The group of workers that this one was started in.

    Attributes:
        workers: how many they are.
        wanted: how many they are to be.
        restarts: how often the group was started again before.
        cause: why it was started again the last time.
        goes_on: whether an earlier group has begun to train, so that nothing must be begun afresh any more.
        stall_timeout: seconds after which a worker that has made its first step counts as stuck, in place of
            ``trainer.stall_timeout``.
    """

    workers: int
    wanted: int
    restarts: int = 0
    cause: str | None = None
    goes_on: bool = False
    stall_timeout: float | None = None


class Supervision:
    """Tells the process that has started this worker how it is.

    Args:
        connection: to it; where that ends, this worker saves and ends as after SIGTERM.
        group: what it has said of the group.

    Attributes:
        step: completed steps, once there is a trainer that has begun.
        shares: what the number of workers must divide, once that is known.
    """

    def __init__(self, connection: Connection, group: Group) -> None:
        self.group = group
        self.step: int | None = None
        self.shares: int | None = None
        self._connection: Connection | None = connection
        self._sending = threading.Lock()
        tell_of_forks(self)
        threading.Thread(target=self._beat, name="supervision", daemon=True).start()
        threading.Thread(target=self._wait_for_its_end, args=(connection,), name="supervisor", daemon=True).start()

    def after_fork(self) -> None:
        """Leave the line to the parent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def fail(self, error: BaseException) -> None:
        """Say what this worker ends with."""
        failure = {
            "kind": type(error).__name__,
            "text": in_one_line(error),
            "step": self.step,
            "is_lasting": isinstance(error, _LASTING),
            "is_of_another": isinstance(error, ClusterError),
        }
        self._send(failure=failure)

    def _send(self, **about: Any) -> None:
        connection = self._connection
        if connection is not None:
            with self._sending, suppress(OSError):  # that it is gone is noticed where it is read
                connection.send_bytes(json.dumps({"step": self.step, "shares": self.shares, **about}).encode())

    def _beat(self) -> None:
        while self._connection is not None:
            self._send()
            time.sleep(BEAT_SECONDS)

    def _wait_for_its_end(self, connection: Connection) -> None:
        with suppress(EOFError, OSError):
            while True:
                connection.recv_bytes()
        if self._connection is connection:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(LAST_SECONDS)
            os._exit(128 + signal.SIGTERM)


_own: list[Supervision] = []


def supervise(connection: Connection, group: Group) -> Supervision:
    """Make this process a worker that somebody has started."""
    _own[:] = [Supervision(connection, group)]
    return _own[0]


def own_supervision() -> Supervision | None:
    """The line to what has started this worker; None if the user has done that."""
    return _own[0] if _own else None
