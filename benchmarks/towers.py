"""Steps per second on several towers: prototrain, Keras `fit` and a loop by hand, under the same strategy, in turns.

    python -m benchmarks.towers --towers cpu:2 --steps 1000 --rounds 5
    python -m benchmarks.towers --workload resnet --steps 10

All train the same network with Adam on the same data, with the same batch per tower. The last column is the median over
the rounds of how much longer a round took than that of the replicated trainer.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks.strategies import Run, fit_under, loop_under
from benchmarks.subjects import trainer_for
from benchmarks.workloads import WORKLOADS, Workload
from prototrain import SimpleTrainer, SyncReplicatedTrainer
from prototrain.towers import choose_devices
from prototrain.trainers.parameter_server import SyncParameterServerTrainer


def prototrain_runner(make: Callable[..., Any], workload: Workload, *, guarded: bool = False) -> Run:
    """A function that trains so many steps; with the guard of `StopOnNaN` or without."""
    trainer = trainer_for(workload, make=lambda model, **_: make(model))
    trainer.check_finite = guarded

    def run(steps: int) -> None:
        done = 0
        while done < steps:
            done += trainer.run_steps(steps - done)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--towers", default="cpu:2")
    parser.add_argument("--workload", choices=WORKLOADS, default="mlp")
    parser.add_argument("--batch", type=int, default=32, help="examples per step, over all towers")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    devices = choose_devices(options.towers)
    cpu = all(name.startswith("CPU") for name in devices)
    workload = dataclasses.replace(WORKLOADS[options.workload], batch=options.batch)

    def strategy() -> tf.distribute.Strategy:
        return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice() if cpu else None)

    def replicated(model: Any) -> SyncReplicatedTrainer:
        return SyncReplicatedTrainer(model, devices)

    at_once = min(50, options.steps)
    runners = {
        "prototrain, 1 tower": prototrain_runner(SimpleTrainer, workload),
        "prototrain, replicated": prototrain_runner(replicated, workload),
        "prototrain, replicated, StopOnNaN": prototrain_runner(replicated, workload, guarded=True),
        "prototrain, parameter server": prototrain_runner(
            lambda model: SyncParameterServerTrainer(model, devices), workload
        ),
        "hand-written loop": loop_under(strategy(), workload),
        "Keras fit": fit_under(strategy(), workload),
        f"Keras fit, {at_once} steps per execution": fit_under(strategy(), workload, steps_per_execution=at_once),
    }
    rates: dict[str, list[float]] = {name: [] for name in runners}
    for run in runners.values():
        run(min(100, options.steps))  # tracing, and learning how long a call may be
    for _ in range(options.rounds):
        for name, run in runners.items():
            begin = time.perf_counter()
            run(options.steps)
            rates[name].append(options.steps / (time.perf_counter() - begin))
    towers = f"{len(devices)} towers ({', '.join(devices)})"
    print(f"{workload.title}, {towers}, batch {options.batch}, steps/s, median of {options.rounds}")
    for name, found in rates.items():
        ratio = statistics.median(base / one for base, one in zip(rates["prototrain, replicated"], found, strict=True))
        print(f"{name:36s} {statistics.median(found):8.0f}   ({min(found):.0f} to {max(found):.0f})   {ratio:.2f}")


if __name__ == "__main__":
    main()
