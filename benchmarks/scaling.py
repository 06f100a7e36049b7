"""Steps per second on several towers or workers, of prototrain, Keras `fit` and a hand-written loop, in turns.

    python -m benchmarks.scaling                                        # some ten minutes
    python -m benchmarks.scaling --towers 1,2 --workers '' --models 0.1 --rounds 5 --output results

The batch of a step is the same whatever their number, so that on one machine the ideal is the same number of steps:
the efficiency is steps/s over those of one. Towers are logical CPU devices, workers are processes, and all share the
cores: what is measured is what dividing costs, not what it gains. The share of the all-reduce is what the hand-written
loop takes longer than the same one in which every tower trains for itself; what prototrain adds is its time less that
loop's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from tabulate import tabulate

from benchmarks.strategies import Run, fit_under, loop_under
from benchmarks.subjects import trainer_for
from benchmarks.workloads import CLASSES, WORKLOADS, Workload
from prototrain import Callback, MultiWorkerTrainer, SyncReplicatedTrainer, cluster
from prototrain.towers import make_cpu_devices

OURS, LOOP, ALONE = "prototrain", "hand-written loop", "the loop without all-reduce"
KINDS = ("towers", "workers")
WARM_UP = 2  # turns that do not count: tracing, and learning how many steps fit into a call


class Setting(NamedTuple):
    """One of the things to be measured.

    Attributes:
        kind: "towers" or "workers".
        count: how many.
        millions: of parameters of the model.
        rounds: how often each takes its turn.
        steps: of a turn.
    """

    kind: str
    count: int
    millions: float
    rounds: int
    steps: int


def workload_of(millions: float) -> Workload:
    """A network of two equal hidden layers with so many millions of parameters."""
    # width ** 2 + (64 + CLASSES) * width = parameters
    half = (64 + CLASSES) / 2
    width = round((millions * 1e6 + half**2) ** 0.5 - half)

    def logits(x: Any, training: bool) -> Any:
        for index in range(2):
            x = keras.layers.Dense(width, activation="relu", name=f"fc{index}")(x)
        return keras.layers.Dense(CLASSES, name="logits")(x)

    return dataclasses.replace(WORKLOADS["mlp"], title=f"{millions:g} M parameters", logits=logits)


class InTurns(Callback):
    """Lets others train after each turn of the trainer's, and measures both.

    Args:
        peers: makes them, by name.
        setting: how long a turn is.
    """

    chief_only = False

    def __init__(self, peers: Callable[[], dict[str, Run]], setting: Setting) -> None:
        self._make_peers = peers
        self._steps = setting.steps
        self.seconds: dict[str, list[float]] = {OURS: []}

    def before_train(self) -> None:
        self._peers = self._make_peers()
        self._begin = time.perf_counter()

    def trigger(self) -> None:
        self.seconds[OURS].append(time.perf_counter() - self._begin)
        for name, run in self._peers.items():
            begin = time.perf_counter()
            run(self._steps)
            self.seconds.setdefault(name, []).append(time.perf_counter() - begin)
        self._begin = time.perf_counter()


def measure(setting: Setting, path: Path) -> None:
    """Take the turns in this process, which is one of the workers or has all towers; the first one writes a file."""
    workload = workload_of(setting.millions)
    make: Callable[..., Any] = lambda model, **_: MultiWorkerTrainer(model)  # noqa: E731
    if setting.kind == "towers":
        make_cpu_devices(setting.count)
        devices = [f"CPU:{index}" for index in range(setting.count)]
        make = lambda model, **_: SyncReplicatedTrainer(model, devices)  # noqa: E731
    trainer = trainer_for(workload, make=make)
    trainer.log = lambda text: None

    def peers() -> dict[str, Run]:
        strategy = trainer.strategy
        found = {LOOP: loop_under(strategy, workload), ALONE: loop_under(strategy, workload, reduces=False)}
        if setting.kind == "workers":  # with several of which `fit` of Keras 3.15 fails
            return found
        at_once = min(50, setting.steps)
        return {
            **found,
            "Keras fit": fit_under(strategy, workload),
            "Keras fit, 50 steps at once": fit_under(strategy, workload, steps_per_execution=at_once),
        }

    turns = InTurns(peers, setting)
    trainer.train([turns.every(steps=setting.steps)], max_steps=setting.steps * (WARM_UP + setting.rounds))
    if trainer.is_chief:
        seconds = {name: [one / setting.steps for one in found[WARM_UP:]] for name, found in turns.seconds.items()}
        path.write_text(json.dumps(seconds))


def run(setting: Setting) -> dict[str, list[float]]:
    """Measure in processes of its own.

    Returns:
        seconds per step, one for each turn, by name.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "seconds.json"
        if setting.kind == "workers":
            cluster.run(partial(measure, setting, path), workers=setting.count, max_restarts=0)
        else:
            process = multiprocessing.get_context("spawn").Process(target=measure, args=(setting, path))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"{setting} failed")
        found: dict[str, list[float]] = json.loads(path.read_text())
        return found


def table(results: dict[Setting, dict[str, list[float]]], kind: str, millions: float) -> str:
    """Steps per second and efficiency of one model, and what follows from them."""
    medians = {
        setting.count: {name: statistics.median(found) for name, found in seconds.items()}
        for setting, seconds in results.items()
        if (setting.kind, setting.millions) == (kind, millions)
    }
    first = medians[min(medians)]
    rows = [
        [name, *(f"{1 / found[name]:.0f} ({first[name] / found[name]:.2f})" for found in medians.values())]
        for name in first
    ]
    rows.append(["share of the all-reduce", *(f"{1 - found[ALONE] / found[LOOP]:.0%}" for found in medians.values())])
    added = [(found[OURS] - found[LOOP]) * 1e6 for found in medians.values()]
    rows.append(["prototrain adds, us a step", *(f"{one:.0f}" for one in added)])
    if len(medians) > 1:
        rows.append([f"and for each of the {kind}", f"{np.polyfit(list(medians), added, 1)[0]:.0f}"])
    headers = [f"{kind}, {millions:g} M: steps/s (efficiency)", *map(str, medians)]
    return tabulate(rows, headers=headers, disable_numparse=True)


def main(arguments: list[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--towers", default="1,2,4", help="how many, in turn; empty for none")
    parser.add_argument("--workers", default="1,2", help="how many, in turn; empty for none")
    parser.add_argument("--models", default="0.1,10", help="millions of parameters; 100 takes 15 GB with 4 towers")
    parser.add_argument("--rounds", type=int, default=5, help="how often each takes its turn")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a turn of one tower takes")
    parser.add_argument("--output", type=Path, help="a directory for scaling.json")
    options = parser.parse_args(arguments)
    results: dict[Setting, dict[str, list[float]]] = {}
    for millions in map(float, options.models.split(",")):
        # Half a millisecond, and five more for each million parameters, on two cores.
        steps = max(2, round(options.seconds / (0.0005 + 0.005 * millions)))
        steps -= steps % 50 if steps > 50 else 0
        for kind in KINDS:
            counts = [int(count) for count in getattr(options, kind).split(",") if count]
            for count in counts:
                setting = Setting(kind, count, millions, options.rounds, steps)
                results[setting] = run(setting)
            if counts:
                print(table(results, kind, millions), end="\n\n", flush=True)
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        record = [{**setting._asdict(), "seconds per step": found} for setting, found in results.items()]
        text = json.dumps({"cores": os.cpu_count(), "results": record}, indent=2)
        (options.output / "scaling.json").write_text(text)


if __name__ == "__main__":
    # The module itself, by a name that other processes can import.
    from benchmarks.scaling import main as run_main

    sys.exit(run_main())
