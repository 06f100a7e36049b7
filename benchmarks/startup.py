"""From the start of a process to the end of its first step, and the memory it takes: prototrain and Keras `fit`.

    python -m benchmarks.startup                               # all workloads
    python -m benchmarks.startup --workload simple --rounds 5 --output results

Each round starts fresh processes in turns. `simple` is the command ``prototrain run models.simple`` with all that it
does by default (an experiment directory, a rehearsal of the validation, TensorBoard), and Keras `fit` of the same
layers on the same data with nothing besides; the others have the same layers and data and no callbacks on both sides.
The figures are seconds of the processor, with those of the clock in brackets, which say little on a machine that has
other things to do:

import      the process starts, imports TensorFlow, Keras and the rest
build       the data, the model and the optimizer are made
tracing     the step is traced; all that a trainer or `fit` does before its first step
first step  TensorFlow optimizes what was traced, and does the first step
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

SUBJECTS = ("prototrain", "Keras fit")
WORKLOADS = ("simple", "mlp", "resnet50", "transformer")
PARTS = ("import", "build", "tracing", "first step")
STEPS = 50  # until memory is looked at
SIMPLE = Path(__file__).parent.parent / "models" / "simple" / "data"

Times = dict[str, tuple[float, float]]  # by part: seconds of the processor, and of the clock


class Watch:
    """Takes the time since the start of this process.

    Args:
        began: when it was started, in seconds since 1970.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._stamps: list[tuple[str, float, float]] = []

    def note(self, part: str) -> None:
        """A part has come to its end; of one that does so several times, such as a trace, the last time counts."""
        self._stamps = [stamp for stamp in self._stamps if stamp[0] != part]
        self._stamps.append((part, time.process_time(), time.time() - self._began))

    def times(self) -> Times:
        """What each part took."""
        found, before = {}, ("", 0.0, 0.0)
        for stamp in self._stamps:
            found[stamp[0]] = (stamp[1] - before[1], stamp[2] - before[2])
            before = stamp
        return found


def with_prototrain(name: str, watch: Watch) -> None:
    """Be a run of prototrain."""
    if name == "simple":  # the command finds this file by its name
        sys.modules["benchmarks.startup"] = sys.modules[__name__]
    from prototrain import Callback, SimpleTrainer

    class Watched(SimpleTrainer):
        """Says when it is built, when its step is traced, and when the first step is done."""

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            watch.note("import")
            super().__init__(*arguments, **keywords)
            watch.note("build")

        def run_steps(self, n: int) -> int:
            if self.global_step:
                return super().run_steps(n)
            _ = self.calls.calls_summaries  # traces the step
            watch.note("tracing")
            done = super().run_steps(n)
            watch.note("first step")
            return done

    if name == "simple":
        from prototrain.cli import main

        globals()["Watched"] = Watched
        with tempfile.TemporaryDirectory() as scratch:
            settings = {"trainer.experiment_base_dir": scratch, "model.num_steps": STEPS}
            options = [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]
            if main(["run", "models.simple", "--trainer", "benchmarks.startup:Watched", *options]):
                raise SystemExit("prototrain run has failed")
        return
    from benchmarks.subjects import trainer_for
    from benchmarks.workloads import DEEP
    from benchmarks.workloads import WORKLOADS as ALL

    class FirstStep(Callback):
        """So that a call has one step first, as with Keras, which has all its calls like that."""

        def next_step(self, step: int) -> int | None:
            return 1 if step == 0 else None

    trainer = trainer_for({**ALL, **DEEP}[name], make=Watched)
    trainer.log = lambda text: None
    trainer.train([FirstStep()], max_steps=STEPS)


def with_keras(name: str, watch: Watch) -> None:
    """Be a run of Keras `fit`."""
    import keras
    import numpy as np
    import tensorflow as tf

    from benchmarks.workloads import DEEP, pair
    from benchmarks.workloads import WORKLOADS as ALL

    watch.note("import")

    class Watched(keras.Model):  # type: ignore[misc]
        """Says when its step is traced."""

        def train_step(self, data: Any) -> Any:
            found = super().train_step(data)
            watch.note("tracing")
            return found

    class FirstStep(keras.callbacks.Callback):  # type: ignore[misc]
        """Says when the first step is done."""

        is_done = False

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if not self.is_done:
                watch.note("first step")
            self.is_done = True

    metrics = []
    if name == "simple":
        rows = [json.loads(line) for line in (SIMPLE / "trn.jsonl").read_text().splitlines()]
        examples = np.array([row["example"] for row in rows], np.float32) / 16
        arrays = (examples, np.array([row["label"] for row in rows], np.int32))
        data = tf.data.Dataset.from_tensor_slices(arrays).shuffle(2000).repeat()
        data = data.batch(32, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
        x = inputs = keras.Input((64,))
        for units in (128, 64):
            x = keras.layers.Dense(units, use_bias=False, kernel_regularizer=keras.regularizers.L2(5e-5))(x)
            x = keras.layers.BatchNormalization(momentum=0.9)(x)
            x = keras.layers.ReLU()(x)
        plain = keras.Model(inputs, keras.layers.Dense(10, kernel_regularizer=keras.regularizers.L2(5e-5))(x))
        metrics = ["accuracy"]
    else:
        workload = {**ALL, **DEEP}[name]
        inputs = keras.Input(workload.shape, dtype=workload.dtype)
        data, plain = workload.batches(pair), keras.Model(inputs, workload.logits(inputs, None))
    model = Watched(plain.inputs, plain.outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), [loss], metrics=metrics, jit_compile=False)
    watch.note("build")
    model.fit(data, steps_per_epoch=STEPS, shuffle=False, verbose=0, callbacks=[FirstStep()])


def child(subject: str, name: str, began: float) -> None:
    """Train in this process, and print what it took as JSON."""
    watch = Watch(began)
    (with_prototrain if subject == "prototrain" else with_keras)(name, watch)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"times": watch.times(), "memory": memory}))


def measure(name: str, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """What each process has printed, by subject.

    Raises:
        SystemExit: one has failed.
    """
    found: dict[str, list[dict[str, Any]]] = {subject: [] for subject in SUBJECTS}
    for _ in range(rounds):
        for subject in SUBJECTS:
            command = [sys.executable, "-m", "benchmarks.startup", "--workload", name]
            command += ["--child", subject, "--began", str(time.time())]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{subject}, {name}: {done.stderr[-2000:]}")
            found[subject].append(json.loads(done.stdout.splitlines()[-1]))
    return found


def medians(measured: list[dict[str, Any]]) -> tuple[Times, float]:
    """The medians of the times by part, with their sum as "in all", and of the megabytes."""
    of_part = {part: [one["times"][part] for one in measured] for part in PARTS}
    of_part["in all"] = [tuple(map(sum, zip(*one["times"].values(), strict=True))) for one in measured]
    times = {part: (_median(taken, 0), _median(taken, 1)) for part, taken in of_part.items()}
    return times, statistics.median(one["memory"] for one in measured)


def _median(taken: list[tuple[float, float]], which: int) -> float:
    return statistics.median(one[which] for one in taken)


def table(results: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> str:
    """A row for each subject and workload, and their ratios."""
    rows = []
    for name, found in results.items():
        (ours, our_memory), (theirs, their_memory) = (medians(found[subject]) for subject in SUBJECTS)
        for subject, times, memory in ((SUBJECTS[0], ours, our_memory), (SUBJECTS[1], theirs, their_memory)):
            rows.append([name, subject, *(f"{cpu:.2f} ({wall:.1f})" for cpu, wall in times.values()), f"{memory:.0f}"])
        ratios = [f"{ours[part][0] / max(theirs[part][0], 1e-9):.2f}" for part in ours]
        rows.append(["", "ratio", *ratios, f"{our_memory / their_memory:.2f}"])
    headers = ["", "", *(f"{part}, s" for part in (*PARTS, "in all")), "peak memory, MB"]
    return tabulate(rows, headers=headers, disable_numparse=True)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a directory for startup.json")
    parser.add_argument("--child", choices=SUBJECTS, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child, options.workload, options.began)
        return
    names = WORKLOADS if options.workload == "all" else [options.workload]
    results = {name: measure(name, options.rounds) for name in names}
    print(table(results))
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "startup.json").write_text(
            json.dumps({"cores": os.cpu_count(), "results": results}, indent=2)
        )


if __name__ == "__main__":
    main()
