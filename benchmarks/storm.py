"""Kill a run at random moments until it is through, and compare it bit for bit with one that was left alone.

    python -m benchmarks.storm --kills 100

What is compared: the loss of every step, all variables (weights, batch statistics, seeds, optimizer slots), the
callbacks' states, and metrics.jsonl without its times: no step missing, none twice.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KINDS = ("iterator", "replay", "restart", "towers", "run_step")
READY, BEGUN = "before the first step", "after the first step"


def main(arguments: list[str] | None = None) -> int:
    """Run the storm that the command line asks for.

    Returns:
        0 if every run equals its reference in every bit, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storm", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="how often the run is killed in all")
    parser.add_argument("--steps", type=int, help="the length of the run; by default long enough for so many kills")
    parser.add_argument("--kind", choices=[*KINDS, "all"], default="iterator", help="what is trained, on which data")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--directory", type=Path, help="keep the runs here")
    options = parser.parse_args(arguments)
    options.steps = options.steps or 250 * options.kills
    kinds = list(KINDS) if options.kind == "all" else [options.kind]
    with tempfile.TemporaryDirectory() as scratch:
        base = options.directory or Path(scratch)
        wrong = [problem for kind in kinds for problem in storm(kind, base, options)]
    for problem in wrong:
        print(f"DIFFERENT: {problem}")
    return 1 if wrong else 0


def storm(kind: str, base: Path, options: argparse.Namespace) -> list[str]:
    """Make the reference and the killed run of one kind.

    Returns:
        what differs between them, in words.
    """
    reference, killed = base / f"{kind}-reference", base / f"{kind}-killed"
    tracing = _run_to_end(kind, reference, options.steps)
    moments = random.Random(options.seed)
    kills, starts, inexact, begin = 0, 0, 0, time.perf_counter()
    while True:
        starts += 1
        process = _start(kind, killed, options.steps)
        # Half of the kills come while TensorFlow traces the first step, the others while steps, saves and the like run.
        wait = moments.uniform(0, 2 * tracing) if kills < options.kills else None
        output, was_killed = _wait(process, wait)
        inexact += "not bit-exact" in output
        if was_killed:
            kills += 1
        elif process.returncode:
            return [f"{kind}: a run ended with exit code {process.returncode}:\n{output[-2000:]}"]
        elif f"step {options.steps}" in output or "nothing left" in output:
            break
    problems = compare(reference, killed) if kind != "restart" else _must_say(kind, inexact)
    problems += _leftovers(killed)
    good = "said that it is not exact" if kind == "restart" else "equal in every bit"
    print(
        f"{kind}: {options.steps} steps, {kills} kills, {starts} starts in {time.perf_counter() - begin:.0f} s: "
        f"{'DIFFERENT' if problems else good}",
        flush=True,
    )
    return [f"{kind}: {problem}" for problem in problems]


def _start(kind: str, directory: Path, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "benchmarks.storm_run", kind, str(directory), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _run_to_end(kind: str, directory: Path, steps: int) -> float:
    """Make the run without a kill; returns how many seconds its first step took, most of which is tracing."""
    process = _start(kind, directory, steps)
    assert process.stdout is not None
    lines, times = [], {}
    for line in process.stdout:
        times[line.strip()] = time.perf_counter()
        lines.append(line)
    process.stdout.close()
    if process.wait():
        raise SystemExit(f"{kind}: the reference failed:\n{''.join(lines)}")
    return max(times[BEGUN] - times[READY], 0.2)


def _wait(process: subprocess.Popen[str], seconds: float | None) -> tuple[str, bool]:
    """Kill a run so many seconds after it is ready; never for None."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if seconds is not None and READY in line:
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
            break
    lines += process.stdout.readlines()
    process.stdout.close()
    return "".join(lines), process.wait() == -signal.SIGKILL


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


def _must_say(kind: str, inexact: int) -> list[str]:
    return [] if inexact else [f"no resumed run of kind {kind} said that it is not exact"]


def _leftovers(directory: Path) -> list[str]:
    found = [path.name for path in (directory / "checkpoints").iterdir() if not path.name.startswith("step-")]
    return [f"left behind in checkpoints: {', '.join(found)}"] if found else []


if __name__ == "__main__":
    sys.exit(main())
