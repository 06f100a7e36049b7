"""Kill, stop and delay workers of a run until it is through, and compare it with one that was left alone.

    python -m benchmarks.cluster --kills 20

Three workers train on this machine, or on a Ray cluster. Kills hit any of them, the chief too, at random moments; one
worker is stopped (SIGSTOP) so that it never answers, and one is stopped for a while right when it starts. What is
compared is every scalar of every step in metrics.jsonl. What a restart costs is what the disturbed run took longer, in
seconds and in seconds of the processors, for each time that the group was started again. The pauses are the seconds
from each disturbance to the next line with a step that a new group has made.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil

MARGIN = 100  # steps at the end in which no kill is meant to come
_WORKER = "prototrain.cluster.work"
_SERVER = "prototrain.system.preloaded"
_LIMIT = 900.0  # seconds without an end, after which something is wrong


@dataclass
class Drill:
    """What a run has left and cost."""

    rows: dict[int, dict[str, Any]]
    steps: list[int]
    seconds: float
    processor: float
    restarts: int
    kinds: dict[str, int]
    pauses: list[float]


def main(arguments: list[str] | None = None) -> int:
    """Run the drill that the command line asks for.

    Returns:
        0 if the disturbed run has the numbers of the other one, and nothing of it is left running, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=3, help="how many")
    parser.add_argument("--kills", type=int, default=20, help="how often a worker is killed in all")
    parser.add_argument("--steps", type=int, help="the length of the run; by default 150 for each kill, and 300 more")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--cluster", help='the address of a Ray cluster, such as "local"')
    parser.add_argument("--directory", type=Path, help="keep the runs here")
    options = parser.parse_args(arguments)
    options.steps = options.steps or 150 * options.kills + 300
    with tempfile.TemporaryDirectory() as scratch:
        base = options.directory or Path(scratch)
        whole = drill(base / "whole", options, Random(options.seed), kills=0)
        disturbed = drill(base / "disturbed", options, Random(options.seed), kills=options.kills)
    problems = compare(whole, disturbed)
    restarts = max(disturbed.restarts, 1)
    print(
        f"{options.workers} workers, {options.steps} steps: {disturbed.kinds} and {disturbed.restarts} restarts in "
        f"{disturbed.seconds:.0f} s, against {whole.seconds:.0f} s; a restart cost "
        f"{(disturbed.seconds - whole.seconds) / restarts:.1f} s, and "
        f"{(disturbed.processor - whole.processor) / restarts:.1f} s of the processors: "
        f"{'DIFFERENT' if problems else 'equal in every scalar'}"
    )
    pauses = sorted(disturbed.pauses)
    if pauses:
        print(
            f"pauses: {statistics.median(pauses):.1f} s in the middle, {pauses[-1]:.1f} s the longest; in turn: "
            f"{', '.join(f'{pause:.1f}' for pause in disturbed.pauses)}"
        )
    for problem in problems:
        print(f"DIFFERENT: {problem}")
    return 1 if problems else 0


def drill(directory: Path, options: argparse.Namespace, random: Random, *, kills: int) -> Drill:
    """Train, and disturb that so often.

    Raises:
        SystemExit: the run has failed or does not end, or something of it is left.
    """
    mark = f"{os.getpid()}-{directory.name}"  # in the environment of all that the run starts
    command = [
        *(sys.executable, "-m", "prototrain.cli", "run", "models.simple", "--workers", str(options.workers)),
        *(["--cluster", options.cluster] if options.cluster else []),
        *("--max-restarts", str(10 * kills + 10), "--stall-timeout", "15"),
        *_settings(directory, options),
    ]
    begin, before = time.monotonic(), _processor_seconds()
    # The workers of a Ray cluster of its own are its descendants as well.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "DRILL": mark}
    )
    disturbing = Disturbing(process.pid, options, random, kills)
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        disturbing.hear(line)
        if time.monotonic() - begin > _LIMIT + 60 * kills:
            process.kill()
    if process.wait():
        raise SystemExit(f"the run ended with exit code {process.returncode}:\n{''.join(lines[-60:])}")
    seconds = time.monotonic() - begin
    left = list(_marked(mark))
    if left:
        raise SystemExit(f"left running: {left}")
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    found = {row["step"]: {k: v for k, v in row.items() if k.startswith(("trn/", "vld/"))} for row in rows}
    steps = [row["step"] for row in rows]
    text = "".join(lines)
    return Drill(
        {step: row for step, row in found.items() if row},
        steps,
        seconds,
        _processor_seconds() - before,
        len(re.findall(r"\(restart \d+ of at most", text)),
        disturbing.kinds,
        disturbing.pauses,
    )


class Disturbing:
    """Does something to the workers of a run, at steps of its own choice.

    Args:
        pid: of the supervisor.
        options: of the drill.
        random: chooses.
        kills: how many.
    """

    def __init__(self, pid: int, options: argparse.Namespace, random: Random, kills: int) -> None:
        self.kinds: dict[str, int] = {}
        self.pauses: list[float] = []
        self._hit: float | None = None
        self._is_new = False  # whether the group is another one than was hit
        self._supervisor = psutil.Process(pid)
        self._random = random
        # The first third kills only; then one is stopped for good, and one comes late.
        self._left = ["kill"] * kills
        if kills:
            self._left.insert(kills // 3, "stop")
            self._left.insert(2 * kills // 3, "late")
        self._way = (options.steps - MARGIN) // (len(self._left) + 1)
        self._count = options.workers
        self._reached = 0
        self._next = self._choose()

    def hear(self, line: str) -> None:
        """Take a line that the run has printed."""
        found = re.match(r"step (\d+), epoch", line)
        self._is_new |= "starting all workers again" in line
        if found is not None and self._hit is not None and self._is_new:
            self.pauses.append(time.monotonic() - self._hit)
            self._hit = None
        if found is None or not self._left or int(found[1]) < self._next:
            return
        self._reached = int(found[1])
        time.sleep(self._random.uniform(0, 1.0))
        workers = self._workers()
        if not workers:  # the line is of a group that is just being started again
            return
        what = self._left.pop(0)
        self.kinds[what] = self.kinds.get(what, 0) + 1
        victim = self._random.choice(workers)
        if self._hit is None:
            self._hit, self._is_new = time.monotonic(), False
        victim.send_signal(signal.SIGSTOP if what == "stop" else signal.SIGKILL)
        if what == "late":
            self._delay_one()
        self._next = self._choose()

    def _choose(self) -> int:
        return self._reached + self._random.randint(1, max(self._way, 1))

    def _delay_one(self) -> None:
        """Stop a worker for a while as soon as it is there, once the group is started again."""
        known = {worker.pid for worker in self._workers()}
        while not (new := [worker for worker in self._workers() if worker.pid not in known]):
            time.sleep(0.02)
        new[-1].suspend()
        time.sleep(5.0)
        new[-1].resume()

    def _workers(self) -> list[psutil.Process]:
        found = []
        for process in self._supervisor.children(recursive=True):
            try:
                forked = _SERVER in process.parent().cmdline()
                if _WORKER in process.cmdline() or forked:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return sorted(found, key=lambda process: process.pid)


def compare(whole: Drill, disturbed: Drill) -> list[str]:
    """Name everything in which two runs differ."""
    problems = []
    if disturbed.steps != sorted(set(disturbed.steps)):
        problems.append("metrics.jsonl has a step twice")
    for step in dict.fromkeys([*whole.rows, *disturbed.rows]):
        one, two = whole.rows.get(step), disturbed.rows.get(step)
        if one != two:
            problems.append(f"step {step}: {one} and {two}")
    return problems[:5]


def _settings(directory: Path, options: argparse.Namespace) -> Iterator[str]:
    settings = {
        "trainer.experiment_base_dir": directory.parent,
        "trainer.experiment_name": directory.name,
        "trainer.checkpoint_save_interval": 50,
        "trainer.print_interval": 10,
        "trainer.summary_save_interval": 1,
        "model.num_steps": options.steps,
        "model.batch_size": 16 * options.workers,
    }
    for key, value in settings.items():
        yield from ("-s", f"{key}={value}")


def _marked(mark: str) -> Iterator[int]:
    """The processes that a drill has started and that are still there."""
    time.sleep(2.0)  # Ray's own take a moment
    for process in psutil.process_iter():
        try:
            if process.environ().get("DRILL") == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process.pid
        except psutil.Error:
            continue


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
