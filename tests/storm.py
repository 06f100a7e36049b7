"""Kill a run at random moments until it is complete, and compare it bit for bit with an undisturbed one.

    python -m tests.storm --kills 100

The loss of every step, all variables (weights, batch statistics, seeds, optimizer slots), the callbacks' states and
metrics.jsonl without its times are compared: no step may be missing, none may be there twice.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

MARGIN = 50  # steps at the end without a kill
KINDS = ("iterator", "replay", "towers")
READY, MADE = "before the first step", re.compile(r"made step (\d+)")


def start_interpreter(arguments: list[str]) -> subprocess.Popen[str]:
    """Start Python with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-u", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the storm that the command line asks for.

    Args:
        arguments: those of the command line.

    Returns:
        0 if every run equals its reference in every bit, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="how often the run is killed in all")
    parser.add_argument("--steps", type=int, help="the length of the run; by default long enough for so many kills")
    parser.add_argument("--kind", choices=[*KINDS, "all"], default="iterator", help="what is trained, on which data")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args(arguments)
    steps = options.steps or 50 * options.kills
    wrong = []
    for kind in KINDS if options.kind == "all" else [options.kind]:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as scratch:
            problems = storm(kind, Path(scratch), steps, options.kills, Random(options.seed))
        outcome = "; ".join(problems) or "equal in every bit"
        print(f"{kind}: {steps} steps, {options.kills} kills in {time.perf_counter() - begin:.0f} s: {outcome}")
        wrong += problems
    return 1 if wrong else 0


def storm(
    kind: str,
    base: Path,
    steps: int,
    kills: int,
    random: Random,
    start: Callable[[list[str]], Any] = start_interpreter,
) -> list[str]:
    """Make the reference and the killed run of one kind, and list their differences.

    Args:
        kind: one of `KINDS`.
        base: a directory for both runs.
        steps: the length of a run.
        kills: how often the second one is killed.
        random: draws the moments of the kills.
        start: starts Python with arguments; returns what can be used like a `subprocess.Popen`.
    """
    reference, killed = base / "reference", base / "killed"
    process = start(["-m", "tests.storm_run", kind, str(reference), str(steps)])
    output = _read(process, READY)
    begun = time.perf_counter()
    output += _read(process, MADE)
    tracing = max(time.perf_counter() - begun, 0.2)
    output += _read(process)
    process.stdout.close()
    if process.wait():
        return [f"the reference failed:\n{output}"]
    reached = 0
    for kill in range(kills + 1):
        process = start(["-m", "tests.storm_run", kind, str(killed), str(steps)])
        # Half of the kills come while TensorFlow traces the first step, the others during steps and saves.
        if kill < kills and kill % 2 == 0:
            output = _read(process, READY)
            timer = threading.Timer(random.uniform(0, tracing), process.send_signal, [signal.SIGKILL])
            timer.start()
            output += _read(process, MADE)
            timer.cancel()
            process.send_signal(signal.SIGKILL)
        elif kill < kills:
            goal = reached + random.randint(1, max((steps - MARGIN - reached) // (kills - kill), 1))
            output = ""
            while reached < goal and (more := _read(process, MADE)):
                output += more
                reached = max([reached, *map(int, MADE.findall(more))])
            time.sleep(random.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
        else:
            output = ""
        output += _read(process)
        process.stdout.close()
        reached = max([reached, *map(int, MADE.findall(output))])
        if process.wait() != (-signal.SIGKILL if kill < kills else 0):
            return [f"a run ended with exit code {process.wait()}:\n{output[-2000:]}"]
    one, two = _results(reference), _results(killed)
    problems = [f"{key} differ: {_first_difference(one[key], two[key])}" for key in one if one[key] != two[key]]
    left = [path.name for path in (killed / "checkpoints").iterdir() if not path.name.startswith(("step-", "min-"))]
    return problems + [f"left behind in checkpoints: {name}" for name in left]


def _read(process: Any, until: str | re.Pattern[str] | None = None) -> str:
    """Read what a run prints, up to a line; to its end if there is none."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if until is not None and re.search(until, line):
            break
    return "".join(lines)


def _results(directory: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    checkpoint = sorted((directory / "checkpoints").glob("step-*"))[-1]
    meta = json.loads((checkpoint / "meta.json").read_text())["meta"]
    return {
        "rows of metrics.jsonl": {row["step"]: {k: v for k, v in row.items() if k != "time"} for row in rows},
        "the steps of metrics.jsonl": [row["step"] for row in rows],
        "the last steps": meta["step"],
        "variables": meta["files"]["model.data-00000-of-00001"]["sha256"] if "model.index" in meta["files"] else None,
        "plain values": meta["values"],
        "the callbacks' states": meta["callbacks"],
        "the monitors' histories": meta["monitors"],
    }


def _first_difference(one: Any, two: Any) -> str:
    if isinstance(one, dict) and isinstance(two, dict):
        for key in [*one, *two]:
            if one.get(key) != two.get(key):
                return f"{key}: {_first_difference(one.get(key), two.get(key))}"
    return f"{str(one)[:200]} and {str(two)[:200]}"


if __name__ == "__main__":
    sys.exit(main())
