"""From the start of a process to the end of its first step, and the memory it takes: prototrain and Keras `fit`.

    python -m benchmarks.startup --workload mlp --rounds 5

Each round starts fresh processes in turns. Importing TensorFlow and Keras, which both do, is shown for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from tabulate import tabulate

SUBJECTS = ("prototrain", "Keras fit")
STEPS = 200


def child(subject: str, name: str) -> None:
    """Train in this process, and print the seconds and megabytes."""
    begin = time.perf_counter()
    import keras
    import tensorflow as tf  # noqa: F401

    imported = time.perf_counter()
    from benchmarks.workloads import WORKLOADS, pair

    workload = WORKLOADS[name]
    if subject == "prototrain":
        from benchmarks.subjects import trainer_for
        from prototrain import Callback

        class FirstStep(Callback):
            priority = 0

            def next_step(self, step: int) -> int | None:
                return 1 if step == 0 else None

            def trigger_step(self) -> None:
                self.at = time.perf_counter()

        first = FirstStep()
        trainer = trainer_for(workload)
        trainer.log = lambda text: None  # type: ignore[method-assign]
        trainer.train([first], max_steps=STEPS)
        at = first.at
    else:
        from benchmarks.subjects import keras_model

        class FirstBatch(keras.callbacks.Callback):
            at = 0.0

            def on_train_batch_end(self, batch: int, logs: object = None) -> None:
                self.at = self.at or time.perf_counter()

        first_batch = FirstBatch()
        model = keras_model(workload)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
        model.fit(workload.batches(pair), steps_per_epoch=STEPS, shuffle=False, verbose=0, callbacks=[first_batch])
        at = first_batch.at
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([imported - begin, at - imported, memory]))


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", default="mlp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", choices=SUBJECTS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child, options.workload)
        return
    found: dict[str, list[list[float]]] = {subject: [] for subject in SUBJECTS}
    for _ in range(options.rounds):
        for subject in SUBJECTS:
            command = [sys.executable, "-m", "benchmarks.startup", "--child", subject, "--workload", options.workload]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[subject].append(json.loads(done.stdout.splitlines()[-1]))
    rows = [
        [subject, *(f"{statistics.median(column):.2f}" for column in zip(*measured, strict=True))]
        for subject, measured in found.items()
    ]
    headers = ["", "imports, s", "from there to the first step, s", f"peak memory after {STEPS} steps, MB"]
    print(tabulate(rows, headers=headers, disable_numparse=True))


if __name__ == "__main__":
    main()
