"""What it costs to save and to restore a large state, against the disk's own speed.

    python -m benchmarks.saving --megabytes 1024
    python -m benchmarks.saving --megabytes 200 --variables 10000

A training of steps in Python saves in the background. Shown are: how long the training stands still for a save, how
long a save takes until it is whole, how long a verified restore takes, and how much memory a save needs; and how long
it takes to write and sync the same bytes by hand, and to read them. Figures are medians, in turns.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tabulate import tabulate

from prototrain.system.quiet import import_tensorflow

import_tensorflow()

import tensorflow as tf  # noqa: E402

from prototrain import Trainer  # noqa: E402


class Holds(Trainer):
    """Has so many variables of so many megabytes, and changes all of them in every step."""

    def __init__(self, directory: Path, megabytes: int, variables: int) -> None:
        super().__init__(experiment=directory)
        self.log = lambda text: None  # type: ignore[method-assign]
        size = megabytes * 2**20 // 4 // variables
        for number in range(variables):
            self.state[f"v{number}"] = tf.Variable(tf.fill([size], float(number)))
        changed = list(self.state.values())

        @tf.function
        def change() -> None:
            for variable in changed:
                variable.assign_add(tf.ones_like(variable))

        self._change = change

    def run_step(self) -> None:
        self._change()


class Memory:
    """The highest resident memory of this process while it is watched, in megabytes.

    TensorFlow keeps what it has been given, so that only the first save shows what one needs.
    """

    def __enter__(self) -> Memory:
        self.most = self.now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            self.most = max(self.most, self.now())

    @staticmethod
    def now() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.saving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--variables", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    home = Path(tempfile.mkdtemp(dir=Path.cwd()))
    try:
        print(measure(home, options.megabytes, options.variables, options.rounds))
    finally:
        shutil.rmtree(home)


def measure(home: Path, megabytes: int, variables: int, rounds: int) -> str:
    """Save, restore, write and read by hand, in turns; returns the table."""
    content = np.random.default_rng(1).bytes(2**20)
    trainer = Holds(home / "run", megabytes, variables)
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    def write() -> None:
        with open(home / "by hand", "wb") as file:
            for _ in range(megabytes):
                file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def read() -> None:
        with open(home / "by hand", "rb", buffering=0) as file:
            while file.read(2**22):
                pass

    def one(number: int) -> None:
        trainer.run_step()
        trainer.go_to(number)
        with Memory() as memory:
            begin = time.perf_counter()
            finish = trainer.start_save()
            note("the training stands still, seconds", time.perf_counter() - begin)
            note("the next step takes, seconds", _seconds(trainer.run_step))
            finish()
            note("save, whole and synced", time.perf_counter() - begin)
        note("memory for saves, shares of the state", (memory.most - before) / megabytes)
        note("write and sync by hand", _seconds(write))
        note("verify and restore", _seconds(lambda: trainer.session.resume.restore(True)))
        note("read by hand", _seconds(read))
        shutil.rmtree(home / "run" / "checkpoints")

    with trainer.session:
        note("a step, seconds", min(_seconds(trainer.run_step) for _ in range(4)))
        before = Memory.now()
        for number in range(1, rounds + 1):
            one(number)
    rows = [(name, statistics.median(values)) for name, values in found.items()]
    return f"{megabytes} MB in {variables:,} variables\n{tabulate(rows, floatfmt='.3g')}"


if __name__ == "__main__":
    main()
