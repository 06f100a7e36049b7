"""The reports from the process of a trial to its sweep, which may prune the trial."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from prototrain.callbacks.base import Callback, Priority
from prototrain.config import Config
from prototrain.config.schema import intervals
from prototrain.errors import StopTraining

if TYPE_CHECKING:
    from prototrain.sweeps.study import Newest


class SweepReporter(Callback):
    """Passes the newest (step, value) of each scalar to `report`, and ends the run if that returns True."""

    priority = Priority.DECIDE

    def __init__(self, report: Callable[[Newest], bool]) -> None:
        self._report = report
        self._has_reported = False

    def after_train(self) -> None:
        trainer = self.trainer
        if not self._has_reported and trainer.global_step == trainer.run.began_at and trainer.callbacks.failure is None:
            self.trigger()  # an earlier sweep has trained this trial, with another objective

    def trigger(self) -> None:
        self._has_reported = True
        monitors = self.trainer.monitors
        if self._report({name: monitors.history(name)[-1] for name in monitors.names()}):
            raise StopTraining("the sweep has pruned this trial")


def reporter(report: Callable[[Newest], bool], config: Config) -> Callback:
    """Return the callback of a trial, which runs at the steps of the validation."""
    return SweepReporter(report).every(**intervals(config["trainer.validation_step_interval"]))


class Link:
    """The connection from the process of a trial to its sweep. If the sweep dies, the trial stops and saves."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="sweep-link", daemon=True).start()

    def report(self, newest: Newest) -> bool:
        """Send the newest scalars and wait for the answer; returns whether the run should end."""
        try:
            self._connection.send_bytes(json.dumps(newest).encode())
        except OSError:
            return False  # the sweep has died, and the process has been told to stop
        return self._answers.get()

    def _listen(self) -> None:
        try:
            while True:
                self._answers.put(json.loads(self._connection.recv_bytes()))
        except (EOFError, OSError):
            self._answers.put(False)
            os.kill(os.getpid(), signal.SIGTERM)


link: Link | None = None  # the link to the sweep, if this is the process of a trial
