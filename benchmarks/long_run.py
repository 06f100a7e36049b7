"""Train for very long with every default callback, and watch memory, file handles and the size of the run's directory.

    python -m benchmarks.long_run --steps 200000

What may grow is what a run is meant to leave behind: rows of metrics.jsonl, events, lines of train.log, in proportion
to the steps. Memory, open files, threads and the checkpoints have to stay as they are once the run has warmed up.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from prototrain.system.quiet import import_tensorflow

import_tensorflow()

from benchmarks.subjects import trainer_for  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402
from prototrain import Callback, load_model  # noqa: E402
from prototrain.launch import default_callbacks  # noqa: E402
from prototrain.trainers.tower import SimpleTrainer  # noqa: E402

MEGABYTE = 2**20
WARM_UP = 0.25  # of the run: the first saves, traces and buffers are made in it
MARGINS = {"rss": 4, "handles": 0, "threads": 0}  # how much they may grow after it: megabytes that an allocator keeps


class Gauge(Callback):
    """Notes what the process holds and prints it as a row.

    Args:
        directory: the run's.
    """

    priority = 1000  # what the other callbacks of the step have made counts

    def __init__(self, directory: Path) -> None:
        self.rows: list[dict[str, float]] = []
        self._directory = directory
        self._process = psutil.Process()

    def before_train(self) -> None:
        self._began = time.perf_counter()
        print("     step  seconds  RSS MB  handles  threads  checkpoints MB  metrics MB  events MB  log MB", flush=True)

    def trigger(self) -> None:
        row = {
            "step": self.trainer.global_step,
            "seconds": time.perf_counter() - self._began,
            "rss": self._process.memory_info().rss / MEGABYTE,
            "handles": len(os.listdir("/proc/self/fd")) - 1,
            "threads": self._process.num_threads(),
            **{
                name: size(self._directory / name)
                for name in ("checkpoints", "metrics.jsonl", "summaries", "train.log")
            },
        }
        self.rows.append(row)
        form = "{:9,.0f}{:9.0f}{:8.1f}{:9.0f}{:9.0f}{:16.2f}{:12.2f}{:11.2f}{:8.2f}"
        print(form.format(*row.values()), flush=True)


def size(path: Path) -> float:
    """The megabytes of a file, or of all files below a directory; one may be renamed or removed meanwhile."""
    files = [path] if path.is_file() else [Path(at, name) for at, _, names in os.walk(path) for name in names]
    total = 0
    for file in files:
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total / MEGABYTE


def growth(rows: list[dict[str, float]], steps: int) -> list[str]:
    """Name what grew after the warm-up and must not, in words."""
    warm = [row for row in rows if row["step"] >= WARM_UP * steps]
    found = []
    half = len(warm) // 2
    # The most of each half, since a file may be open at one row and closed at the next.
    for name, margin in MARGINS.items():
        before, after = (max(row[name] for row in part) for part in (warm[:half], warm[half:]))
        if after - before > margin:
            found.append(f"{name} grew from {before:.0f} to {after:.0f}")
    if warm[-1]["checkpoints"] > 1.1 * warm[0]["checkpoints"]:
        found.append(f"checkpoints grew from {warm[0]['checkpoints']:.1f} to {warm[-1]['checkpoints']:.1f} MB")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Make the run that the command line asks for.

    Returns:
        0 if nothing grew that must not, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000, help="the length of the run")
    parser.add_argument("--every", type=int, default=10_000, help="steps between two rows")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between two checkpoints")
    parser.add_argument("--interval", type=int, help="steps between two prints, summaries and validations")
    parser.add_argument("--model", default="models.simple", help="what is trained")
    parser.add_argument("--workload", choices=WORKLOADS, help="of the other benchmarks, in place of a model")
    parser.add_argument("--directory", type=Path, help="keep the run here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.directory or Path(scratch) / "run"
        trainer = None if options.workload is None else trainer_for(WORKLOADS[options.workload], directory)
        model = load_model(options.model) if trainer is None else trainer.model
        model.config["model.num_steps"] = options.steps
        model.config["trainer.checkpoint_save_interval"] = options.save_every
        if options.interval is not None:
            for key in ("print_interval", "summary_save_interval", "validation_step_interval"):
                model.config[f"trainer.{key}"] = options.interval
        gauge = Gauge(directory)
        trainer = trainer or SimpleTrainer(model, experiment=directory)
        trainer.train([*default_callbacks(model), gauge.every(steps=options.every)], max_steps=options.steps)
    found = growth(gauge.rows, options.steps)
    for problem in found:
        print(f"LEAK: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
