"""The side of a process that trains in turns with others; needs neither TensorFlow nor any of its peers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LOG, SAVE = 50, 1000  # steps between two losses that are logged, and between two checkpoints where there are any


class Batches(NamedTuple):
    """The data, in memory: some batches, which are gone through again and again in the same order.

    Attributes:
        x: [batches, batch, ...], of float32 or int32.
        y: [batches, batch], labels of int32.
    """

    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]


class Turns:
    """Steps of a training in turns; the first turn has all that comes before the steps in it.

    The parent gets a line of JSON when this process has imported everything, and one for each turn when it is over; it
    answers with a line when it is this process's turn again.

    Args:
        steps: of a turn.
        count: how many there are, the first one included.

    Attributes:
        end: the number of steps after which the current turn is over.
        total: the number of steps of all turns.
    """

    def __init__(self, steps: int, count: int) -> None:
        self.steps, self.total, self.end = steps, steps * count, steps
        self._replies = os.fdopen(os.dup(1), "w")
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)  # a terminal's speed is not measured

    def begin(self) -> None:
        """Everything is imported: wait for the first turn."""
        self._reply({})

    def over(self, loss: float, parameters: int) -> None:
        """The current turn is over: say so, and wait for the next one.

        Args:
            loss: of the last step; to have it is the end of that step.
            parameters: how many numbers are trained.
        """
        seconds = time.perf_counter() - self._since
        self.end += self.steps
        self._reply({"seconds": seconds, "loss": loss, "parameters": parameters, "megabytes": _peak()})

    def _reply(self, content: dict[str, float]) -> None:
        print(json.dumps(content), file=self._replies, flush=True)
        if not sys.stdin.readline():
            os._exit(1)  # the parent is gone
        self._since = time.perf_counter()


def _peak() -> float:
    """Megabytes of memory at most. `getrusage` counts what the parent had when it started this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def loop(turns: Turns, batches: Batches) -> Iterator[tuple[int, int]]:
    """The number of each step, from one, with that of its batch."""
    for step in range(1, turns.total + 1):
        yield step, (step - 1) % len(batches.x)


def read(path: Path) -> Batches:
    """The batches that the parent has written."""
    with np.load(path) as file:
        return Batches(file["x"], file["y"])
