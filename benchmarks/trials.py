"""What it takes to start a trial of a sweep: forked from a process that has TensorFlow imported, and a new interpreter.

    python -m benchmarks.trials --rounds 5

Both are started in turns, as a sweep starts them. "ready" is when a trial could begin with its model; "ended" is the
end of a trial with one step of `models.simple`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from tabulate import tabulate

from prototrain.system.preloaded import Preloaded

KINDS = ("forked", "new interpreter")


def arrive() -> int:
    """What a trial does first: have TensorFlow and the trainers there; says when it has."""
    import prototrain.launch  # noqa: F401

    print(time.time(), flush=True)
    return 0


def train() -> int:
    """Be a trial."""
    from prototrain.cli import main

    return main()


def start(kind: str, preloaded: Preloaded, function: str, arguments: list[str], output: int) -> None:
    """Start a process and wait for its end.

    Raises:
        SystemExit: it has failed.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if kind == "forked":
        code = preloaded.start(
            f"benchmarks.trials:{function}", arguments, environment=environment, stdout=output
        ).wait()
    else:
        program = f"import sys; from benchmarks.trials import {function}; sys.exit({function}())"
        command = [sys.executable, "-c", program, *arguments]
        code = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode
    if code:
        raise SystemExit(f"{kind}: {function} ended with exit code {code}")


def measure(kind: str, preloaded: Preloaded, directory: Path) -> list[float]:
    """Seconds until a trial is ready, and until it has ended."""
    with tempfile.TemporaryFile("w+") as file:
        begin = time.time()
        start(kind, preloaded, "arrive", [], file.fileno())
        file.seek(0)
        ready = float(file.read().split()[-1]) - begin
    settings = {
        "model.num_steps": 1,
        "trainer.experiment_base_dir": directory,
        "trainer.experiment_name": "{timestamp}",
    }
    options = [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]
    with tempfile.TemporaryFile("w+") as file:
        begin = time.time()
        start(kind, preloaded, "train", ["run", "models.simple", "--fresh", "--yes", *options], file.fileno())
        return [ready, time.time() - begin]


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trials", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with closing(Preloaded()) as preloaded, tempfile.TemporaryDirectory() as scratch:
        measure("forked", preloaded, Path(scratch))  # the server's own start is paid once in a sweep
        for number in range(options.rounds):
            for kind in KINDS:
                found[kind].append(measure(kind, preloaded, Path(scratch) / f"{kind} {number}"))
    rows = [
        [kind, *(f"{statistics.median(column):.2f}" for column in zip(*measured, strict=True))]
        for kind, measured in found.items()
    ]
    print(tabulate(rows, headers=["", "ready, s", "ended, s"], disable_numparse=True))


if __name__ == "__main__":
    main()
