"""Compares the steps per second of prototrain and Keras `fit` with one graph call that only runs the steps.

    python -m benchmarks.steps                                # every workload
    python -m benchmarks.steps --workload mlp --rounds 5 --output results

The candidates are a part of those in `benchmarks.peers` and run in turns in the same way.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from benchmarks.peers.compare import NAMES, OURS, PEERS, measure
from benchmarks.workloads import WORKLOADS
from prototrain.system.terminal import Table

LIMIT = "one graph call, the limit"
TITLES = [OURS, LIMIT, "prototrain, usual and a per-step callback", "Keras fit as it comes"]
TITLES += [title for title in PEERS if title.startswith("Keras") and title.endswith("no XLA")]


def table(seconds: dict[str, list[float]], steps: int) -> str:
    """Format the median steps per second and the median ratio to the limit in the same round."""
    rows = []
    for title, taken in seconds.items():
        ratios = [limit / one for one, limit in zip(taken, seconds[LIMIT], strict=True)]
        rows.append([title, f"{steps / statistics.median(taken):.0f}", f"{statistics.median(ratios):.2f}"])
    return str(Table(rows, ["", "steps/s", "of the limit"]))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=[*NAMES, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=5, help="number of turns per candidate")
    parser.add_argument("--steps", type=int, help="steps per turn (default: those of the workload)")
    parser.add_argument("--output", type=Path, help="a directory for steps.json")
    options = parser.parse_args(arguments)
    results = {}
    for name in NAMES if options.workload == "all" else [options.workload]:
        steps = options.steps or WORKLOADS[name].steps
        turns = measure(name, TITLES, options.rounds, steps)
        results[name] = {title: [turn["seconds"] for turn in found[1:]] for title, found in turns.items()}
        print(f"\n{WORKLOADS[name].title}, batch {WORKLOADS[name].batch}, {options.rounds} rounds")
        print(table(results[name], steps), flush=True)
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "steps.json").write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
