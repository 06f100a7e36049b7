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

MARGIN = 100  # steps at the end in which no kill is meant to come
KINDS = ("iterator", "replay", "towers", "run_step", "keras")
READY, MADE = "before the first step", re.compile(r"made step (\d+)")


def start_interpreter(arguments: list[str]) -> subprocess.Popen[str]:
    """Start Python with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-u", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def main(arguments: list[str] | None = None, start: Callable[[list[str]], Any] = start_interpreter) -> int:
    """Run the storm that the command line asks for.

    Args:
        arguments: those of the command line.
        start: starts Python; returns what can be used like a `subprocess.Popen`.

    Returns:
        0 if every run equals its reference in every bit, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="how often the run is killed in all")
    parser.add_argument("--steps", type=int, help="the length of the run; by default long enough for so many kills")
    parser.add_argument("--kind", choices=[*KINDS, "all"], default="iterator", help="what is trained, on which data")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--directory", type=Path, help="keep the runs here")
    options = parser.parse_args(arguments)
    options.steps = options.steps or 50 * options.kills
    kinds = list(KINDS) if options.kind == "all" else [options.kind]
    with tempfile.TemporaryDirectory() as scratch:
        base = options.directory or Path(scratch)
        wrong = [problem for kind in kinds for problem in storm(kind, base, options, start)]
    for problem in wrong:
        print(f"DIFFERENT: {problem}")
    return 1 if wrong else 0


def storm(kind: str, base: Path, options: argparse.Namespace, start: Callable[[list[str]], Any]) -> list[str]:
    """Make the reference and the killed run of one kind.

    Returns:
        what differs between them, in words.
    """
    reference, killed = base / f"{kind}-reference", base / f"{kind}-killed"
    program = ["-m", "tests.storm_run", kind]
    tracing = _run_to_end(kind, start([*program, str(reference), str(options.steps)]))
    random = Random(options.seed)
    kills, reached, begin = 0, 0, time.perf_counter()
    while True:
        process = start([*program, str(killed), str(options.steps)])
        # Half of the kills come while TensorFlow traces the first step, the others while steps, saves and the like run.
        left = options.kills - kills
        if left and kills % 2 == 0:
            output = _kill_within(process, random.uniform(0, tracing))
        elif left:
            way = max((options.steps - MARGIN - reached) // left, 1)
            output = _kill_at(process, reached + random.randint(1, way), random.uniform(0, 0.02))
        else:
            output = "".join(process.stdout)
        process.stdout.close()
        reached = max([reached, *map(int, MADE.findall(output))])
        if not left:
            break
        if process.wait() != -signal.SIGKILL:
            return [f"{kind}: a run ended by itself, with exit code {process.wait()}:\n{output[-2000:]}"]
        kills += 1
    if process.wait():
        return [f"{kind}: the last run ended with exit code {process.wait()}:\n{output[-2000:]}"]
    problems = compare(reference, killed) + _leftovers(killed)
    print(
        f"{kind}: {options.steps} steps, {kills} kills in {time.perf_counter() - begin:.0f} s: "
        f"{'DIFFERENT' if problems else 'equal in every bit'}",
        flush=True,
    )
    return [f"{kind}: {problem}" for problem in problems]


def _run_to_end(kind: str, process: Any) -> float:
    """Let the run without a kill end; returns how many seconds its first step took, most of which is tracing."""
    lines, ready, made = [], 0.0, 0.0
    for line in process.stdout:
        lines.append(line)
        if READY in line:
            ready = time.perf_counter()
        elif MADE.search(line) and not made:
            made = time.perf_counter()
    process.stdout.close()
    if process.wait():
        raise SystemExit(f"{kind}: the reference failed:\n{''.join(lines)}")
    return max(made - ready, 0.2)


def _kill_within(process: Any, seconds: float) -> str:
    """Kill a run so many seconds after it is ready, or right after its first step; returns what it has printed."""
    lines = []
    timer = threading.Timer(seconds, process.send_signal, [signal.SIGKILL])
    for line in process.stdout:
        lines.append(line)
        if READY in line:
            timer.start()
        elif MADE.search(line):
            process.send_signal(signal.SIGKILL)
            break
    timer.cancel()
    return "".join([*lines, *process.stdout])


def _kill_at(process: Any, step: int, seconds: float) -> str:
    """Kill a run so many seconds after a step; returns what it has printed."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if (made := MADE.search(line)) and int(made[1]) >= step:
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
            break
    return "".join([*lines, *process.stdout])


def compare(reference: Path, killed: Path) -> list[str]:
    """Name everything in which the results of two runs differ."""
    problems = []
    one, two = (_results(path) for path in (reference, killed))
    for key in one:
        if one[key] != two[key]:
            problems.append(f"{key} differ: {_first_difference(one[key], two[key])}")
    return problems


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


def _leftovers(directory: Path) -> list[str]:
    found = [path.name for path in (directory / "checkpoints").iterdir() if not path.name.startswith("step-")]
    return [f"left behind in checkpoints: {', '.join(found)}"] if found else []


if __name__ == "__main__":
    sys.exit(main())
