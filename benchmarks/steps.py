"""Steps per second of prototrain and its peers on the same model, data and optimizer, in turns in one process.

    python -m benchmarks.steps                                 # everything, which takes about half an hour
    python -m benchmarks.steps --workload mlp --rounds 5 --output results

Prints a table for each workload and, with --output, writes it as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tabulate import tabulate

from benchmarks.subjects import subjects
from benchmarks.workloads import WORKLOADS, Workload


def main(arguments: list[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=5, help="how often each takes its turn")
    parser.add_argument("--steps", type=int, help="steps of a turn; by default some seconds' worth")
    parser.add_argument("--only", default="", help="only the subjects whose title has this text, and the limit")
    parser.add_argument("--output", type=Path, help="a directory for steps.json")
    options = parser.parse_args(arguments)
    names = list(WORKLOADS) if options.workload == "all" else [options.workload]
    results = {}
    for name in names:
        workload = WORKLOADS[name]
        results[name] = measure(workload, options.steps or workload.steps, options.rounds, options.only)
        print(f"\n{workload.title}, batch {workload.batch}, median of {options.rounds} rounds")
        print(table(results[name]), flush=True)
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        record = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "results": results}
        (options.output / "steps.json").write_text(json.dumps(record, indent=2))


def measure(workload: Workload, steps: int, rounds: int, only: str = "") -> dict[str, list[float]]:
    """Steps per second of every subject, one figure a round."""
    chosen = {title: make for title, make in subjects().items() if only in title or title.startswith("limit")}
    runners = {title: make(workload) for title, make in chosen.items()}
    rates: dict[str, list[float]] = {title: [] for title in runners}
    for _ in range(rounds):
        for title, run in runners.items():
            rates[title].append(steps / run(steps))
    return rates


def table(rates: dict[str, list[float]]) -> str:
    """Medians, and their ratios to the limit and to Keras as it comes."""
    medians = {title: statistics.median(found) for title, found in rates.items()}
    limit, keras = next(iter(medians.values())), medians.get("Keras fit as it comes")
    rows: list[list[Any]] = [
        [title, f"{rate:.0f}", f"{rate / limit:.3f}", "" if keras is None else f"{rate / keras:.2f}"]
        for title, rate in medians.items()
    ]
    return tabulate(rows, headers=["", "steps/s", "of the limit", "x Keras fit"], disable_numparse=True)


if __name__ == "__main__":
    main()
