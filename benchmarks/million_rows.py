"""How long it takes to look at, and to go on with, a run that has left very many rows, and the memory that it takes.

    python -m benchmarks.million_rows --rows 1000000 --experiments 1000

Makes an experiment with so many rows of five scalars, and a directory with so many small ones. Every command runs in a
process of its own. What comes first finds no index, what follows does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

SMALL_ROWS = 100
RESUME = """
import sys
from pathlib import Path
from prototrain.experiment.rows import cut_back
cut_back(Path(sys.argv[1]), int(sys.argv[2]))
"""


def make(directory: Path, rows: int) -> Path:
    """Write an experiment whose metrics.jsonl has so many rows."""
    directory.mkdir(parents=True)
    part = {
        "started": 1.7e9, "state": "interrupted", "reason": "SIGTERM", "start": "fresh", "first_step": 0, "step": rows,
        "total_steps": rows, "seconds": rows / 20, "loop": {}, "callbacks": {}, "changes": [],
    }  # fmt: skip
    (directory / "run.json").write_text(json.dumps({"parts": [part]}))
    (directory / "config.json").write_text(json.dumps({"trainer.experiment_name": directory.name}))
    (directory / "environment.json").write_text(json.dumps({"run_id": directory.name, "versions": {}}))
    noise = random.Random(directory.name)
    with open(directory / "metrics.jsonl", "w") as file:
        for step in range(1, rows + 1):
            loss = math.exp(-step / rows) + 0.1 * noise.random()
            row = {
                "step": step,
                "time": round(1.7e9 + step / 20, 3),
                "trn/accuracy": 1 - loss / 2,
                "trn/learning_rate": 1e-3 * 0.5 ** (step / rows),
                "trn/loss": loss,
                "trn/loss_l2": 0.01 * noise.random(),
                **({"vld/loss": loss + 0.1} if step % 100 == 0 else {"trn/loss_total": loss + 0.01}),
            }
            file.write(json.dumps(row) + "\n")
    return directory


def measure(arguments: list[str]) -> tuple[float, float, float]:
    """Run a process to its end.

    Returns:
        the seconds it took, those that it was computing, and its largest size in megabytes.

    Raises:
        RuntimeError: it failed.
    """
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with exit code {process.returncode}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.million_rows",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--directory", help="where they are made; default: a temporary one, deleted at the end")
    options = parser.parse_args(arguments)
    base = Path(options.directory or tempfile.mkdtemp(prefix="million-rows-"))
    try:
        headers = ["", "s", "s of the processor", "MB"]
        print(tabulate(_measured(base, options.rows, options.experiments), headers=headers, floatfmt=".1f"))
    finally:
        if options.directory is None:
            shutil.rmtree(base)


def _measured(base: Path, rows: int, experiments: int) -> list[tuple[str, float, float, float]]:
    one = str(make(base / "large" / "one", rows))
    small = base / "small"
    for number in range(experiments):
        make(small / f"run-{number:04d}", SMALL_ROWS)
    picture = str(base / "curves.png")
    command = ["-m", "prototrain.cli"]
    steps = {
        "runs, without an index": [*command, "runs", str(base / "large")],
        "runs": [*command, "runs", str(base / "large")],
        "compare": [*command, "compare", one, one],
        "plot": [*command, "plot", one, "--scalar", "trn/loss", "--scalar", "vld/loss", "-o", picture],
        "report": [*command, "report", one],
        f"runs, {experiments} experiments of {SMALL_ROWS} rows": [*command, "runs", str(small)],
        "a resume, its metrics": ["-c", RESUME, str(Path(one, "metrics.jsonl")), str(rows - rows // 100)],
    }
    return [(name, *measure(arguments)) for name, arguments in steps.items()]


if __name__ == "__main__":
    main()
