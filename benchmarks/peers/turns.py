"""The child's side of training in turns. Imports none of the compared libraries."""

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
    """The data in memory: batches that are used in a cycle.

    Attributes:
        x: examples [batches, batch, ...], float32 or int32.
        y: labels [batches, batch], int32.
    """

    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]


class Turns:
    """Runs the steps of a training in turns with other processes. The first turn includes building the model.

    This process writes a line of JSON to its parent after the imports and after each turn. The parent writes a line to
    start the next turn.

    Args:
        steps: steps per turn.
        count: number of turns, the first one included.

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
        """Report that all imports are done and wait for the first turn."""
        self._reply({})

    def over(self, loss: float, parameters: int) -> None:
        """Report the end of the current turn and wait for the next one.

        Args:
            loss: the loss of the last step, as a Python number, so the step has ended.
            parameters: the number of trained parameters.
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
    """Return the peak memory in megabytes. `getrusage` would include memory of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def loop(turns: Turns, batches: Batches) -> Iterator[tuple[int, int]]:
    """Yield the number of each step, from 1, and the index of its batch."""
    for step in range(1, turns.total + 1):
        yield step, (step - 1) % len(batches.x)


def read(path: Path) -> Batches:
    """Read the batches that the parent wrote."""
    with np.load(path) as file:
        return Batches(file["x"], file["y"])
