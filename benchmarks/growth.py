"""The cost of a step against the number of callbacks, variables, scalars and towers.

    python -m benchmarks.growth --steps 2000 --rounds 5

Callbacks: so many that are never due. Variables: a chain of so many matrices of 8 x 8. Scalars: so many that
each step returns, and what it costs to record them every 10 steps for TensorBoard and as JSON lines. Towers: logical
CPU devices that share a batch. The slope is that of a straight line through the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from tabulate import tabulate

from benchmarks.subjects import Stopwatch, trainer_for
from benchmarks.workloads import WORKLOADS
from prototrain import Callback, Config, SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import JSONWriter, Summaries, TensorBoardWriter
from prototrain.towers import make_cpu_devices

CALLBACKS, VARIABLES, SCALARS, TOWERS = (1, 10, 100), (10, 100, 1000), (10, 100, 1000), (1, 2, 4)
RECORD = 10  # steps between two recordings of the scalars


class Idle(Callback):
    """Has a schedule and is never due before the run's end."""

    def trigger(self) -> None:
        pass


def with_callbacks(count: int, steps: int) -> float:
    """Microseconds per step of the MLP with so many idle callbacks."""
    return _microseconds(trainer_for(WORKLOADS["mlp"]), steps, [Idle().every(steps=10**9) for _ in range(count)])


def with_variables(count: int, steps: int) -> float:
    """Microseconds per step of a chain of so many small layers."""

    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        x = inputs["x"]
        for index in range(count):
            x = x + keras.layers.Dense(8, use_bias=False, name=f"fc{index}")(x) / count
        return {"loss": tf.reduce_mean(x**2)}

    return _microseconds(SimpleTrainer(_model(build)), max(steps * 10 // count, 20), [])


def with_scalars(count: int, steps: int) -> float:
    """Microseconds per step for recording so many scalars, without the cost of interrupting the steps."""

    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        loss = tf.reduce_mean(keras.layers.Dense(8)(inputs["x"]) ** 2)
        scalars = tf.unstack(tf.range(count, dtype=tf.float32) * loss)
        return {"loss": loss, **{f"scalar_{index}": scalar for index, scalar in enumerate(scalars)}}

    found = []
    for callbacks in (
        [Idle().every(steps=RECORD)],
        [Summaries().every(steps=RECORD), TensorBoardWriter(), JSONWriter()],
    ):
        with tempfile.TemporaryDirectory() as scratch:
            found.append(_microseconds(SimpleTrainer(_model(build), experiment=f"{scratch}/run"), steps, callbacks))
    return found[1] - found[0]


def with_towers(count: int, steps: int) -> float:
    """Microseconds per step of the MLP on so many logical CPU devices."""
    devices = [f"CPU:{index}" for index in range(count)]
    return _microseconds(
        trainer_for(WORKLOADS["mlp"], make=lambda model, **_: SyncReplicatedTrainer(model, devices)), steps, []
    )


def _model(build: Callable[..., Any]) -> SimpleNamespace:
    config = {
        "trainer.experiment_name": "growth",
        "model.batch_size": 8,
        "model.num_steps": 1,
        "model.optimizer.method": "sgd",
        "model.lr_schedule.method": "constant",
        "model.lr_schedule.constant.value": 1e-3,
    }
    data = tf.data.Dataset.from_tensors({"x": np.ones((8, 8), np.float32)}).repeat()
    return SimpleNamespace(config=Config(config), datasets=lambda: {"trn": data}, build=build)


def _microseconds(trainer: SimpleTrainer, steps: int, callbacks: list[Callback]) -> float:
    watch = Stopwatch()
    trainer.log = lambda text: None  # type: ignore[method-assign]
    trainer.train([*callbacks, watch], max_steps=watch.warm_up + steps)
    return watch.seconds / steps * 1e6


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    make_cpu_devices(max(TOWERS))
    kinds: dict[str, tuple[tuple[int, ...], Callable[[int, int], float]]] = {
        "callbacks that are not due": (CALLBACKS, with_callbacks),
        "variables": (VARIABLES, with_variables),
        f"scalars, recorded every {RECORD} steps": (SCALARS, with_scalars),
        "towers": (TOWERS, with_towers),
    }
    rows = []
    for title, (counts, measure) in kinds.items():
        found: dict[int, list[float]] = {count: [] for count in counts}
        for _ in range(options.rounds):
            for count in counts:
                found[count].append(measure(count, options.steps))
        medians = [statistics.median(found[count]) for count in counts]
        slope = float(np.polyfit(counts, medians, 1)[0])
        figures = ", ".join(f"{count}: {median:.0f}" for count, median in zip(counts, medians, strict=True))
        rows.append([title, figures, f"{slope:.2f}"])
    print(tabulate(rows, headers=["number of", "microseconds per step", "slope, us each"], disable_numparse=True))


if __name__ == "__main__":
    main()
