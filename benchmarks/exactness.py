"""Draw pipelines from a grammar, save their position everywhere in three passes, and compare what follows.

    python -m benchmarks.exactness --pipelines 20000 --seed 1

Every pipeline whose mode claims to be exact must go on with the same batches from every one of its positions, in a
`TrainingData` that is made anew, or say that its data did not repeat. What does not is printed as code, and so is what
does not come back within half a minute or takes the process down, unless TensorFlow alone does so as well.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from prototrain.system.quiet import import_tensorflow

import_tensorflow()

import tensorflow as tf  # noqa: E402

from benchmarks.pipelines import Workshop, pipeline  # noqa: E402
from prototrain.data.cache_files import give_back_caches  # noqa: E402
from prototrain.data.stream import TrainingData  # noqa: E402
from prototrain.errors import DataError, PrototrainError, StopTraining  # noqa: E402

LONGEST = 30.0  # seconds that a pipeline may take; those that come back take 4 at most
POSITIONS = 18  # that are saved
RESTORED = 1  # of them: another pipeline shows more than another position of this one
PASSES = 3
FOLLOWING = 8  # batches that are compared, of the pass that a position is in and the next one
Batches = list[Any]


class Outcome(NamedTuple):
    """What became of a pipeline.

    Attributes:
        kind: its mode, "not valid" if it gives no batches, or "inexact but said so".
        problem: what is not as it was claimed, or an empty text.
    """

    kind: str
    problem: str = ""


def examine(
    make: Callable[[], dict[str, tf.data.Dataset]], directory: Path, random: Random, *, by_chance: bool = False
) -> Outcome:
    """Save a pipeline's position everywhere and compare what follows.

    Args:
        make: builds it.
        directory: for the saved positions.
        random: how long to wait between batches, so that threads that read ahead come differently far.
        by_chance: whether unseeded Python code makes the data, which may be the same in the few batches that are read
            again and differ after them.
    """

    def quietly(line: str) -> None:
        pass

    try:
        data = TrainingData(make, seed=5, announce=quietly)
        if data.mode == "restart":
            return Outcome("restart")
        metas, batches = _saved_everywhere(data, directory, random)
    except (DataError, tf.errors.OpError):
        return Outcome("not valid")
    kind = data.mode
    for index in sorted(random.sample(range(len(metas)), min(RESTORED, len(metas)))):
        meta = metas[index]
        give_back_caches()  # as a new process finds them
        try:
            fresh = TrainingData(make, seed=5, announce=quietly)
            if fresh.mode != data.mode:
                return Outcome(data.mode, f"its mode was {data.mode} and is {fresh.mode}")
            fresh.read(str(directory / f"{index}"), json.loads(json.dumps(meta)))
            fresh.catch_up()
            found = _following(fresh, min(FOLLOWING, len(batches) - index), random)
            expected = batches[index : index + max(len(found), 1)]
        except (PrototrainError, tf.errors.OpError) as error:
            if not by_chance:
                return Outcome(kind, f"after {index} batches: {error}")
            return Outcome("random Python code that could not be read again, and said so")
        if found != expected:
            if fresh.caveat is None and not by_chance:
                return Outcome(kind, f"after {index} batches ({meta['behind']} behind): {expected} and {found}")
            kind = "inexact but said so" if fresh.caveat else "random Python code that was alike as far as it was read"
    return Outcome(kind)


def _saved_everywhere(data: TrainingData, directory: Path, random: Random) -> tuple[list[Any], Batches]:
    metas: list[Any] = []
    batches: Batches = []
    while len(metas) < POSITIONS:
        meta = data.write(str(directory / f"{len(metas)}"))()
        found = _following(data, 1, random) if meta["pass"] < PASSES else []
        if not found:
            break
        metas.append(meta)
        batches += found
    return metas, batches + _following(data, FOLLOWING, random)


def _following(data: TrainingData, number: int, random: Random) -> Batches:
    found: Batches = []
    is_next_pass = False
    while len(found) < number:
        if random.random() < 0.2:
            time.sleep(random.random() * 0.003)
        batch = next(data.iterator, None)
        if batch is not None:
            data.count(1)
            value = batch["x"]
            found.append(value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist())
            continue
        if is_next_pass:
            break
        is_next_pass = True
        try:
            data.start_next_pass()
        except StopTraining:
            break
    return found


def worker(seed: int, first: int, end: int) -> None:
    """Examine pipelines, and print a line before and behind each."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # a fifth of the time goes into looking through TensorFlow's modules otherwise
    with tempfile.TemporaryDirectory() as home:
        workshop = Workshop(Path(home))
        for number in range(first, end):
            random = Random(f"{seed}/{number}")
            code = pipeline(random.choice)
            print(json.dumps({"number": number, "code": code}), flush=True)
            with tempfile.TemporaryDirectory(dir=home) as directory:
                outcome = examine(workshop.maker(code), Path(directory), random, by_chance="anything" in code)
            print(json.dumps({"number": number, **outcome._asdict()}), flush=True)


def supervise(seed: int, first: int, end: int, report: Callable[[str, Outcome], None]) -> None:
    """Have a process examine a range of pipelines; one that hangs or dies is a problem of the pipeline it was at."""
    while first < end:
        arguments = [sys.executable, "-m", "benchmarks.exactness", "--worker", str(seed), str(first), str(end)]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        code, killed = "", False
        timer = _Alarm(process)
        for line in process.stdout:
            said = json.loads(line)
            timer.restart()
            if "code" in said:
                first, code = said["number"], said["code"]
            else:
                report(code, Outcome(said["kind"], said["problem"]))
                first, code = said["number"] + 1, ""
        killed = timer.stop()
        process.wait()
        # A race in TensorFlow ends processes that read an interleave with this option, not each time.
        known = process.returncode < 0 and "symbolic=True" in code and "interleave" in code
        if code and (known or fails_by_itself(code)):
            report(code, Outcome("not valid"))
            first += 1
        elif code:
            problem = f"did not come back within {LONGEST:g} s" if killed else f"ended with {process.returncode}"
            report(code, Outcome("failed", problem))
            first += 1
        elif process.returncode:
            raise SystemExit(f"a worker ended with {process.returncode}")


def fails_by_itself(code: str) -> bool:
    """Whether TensorFlow alone, reading a pipeline again and again, ends the process or never comes back."""
    arguments = [sys.executable, "-m", "benchmarks.exactness", "--alone", code]
    try:
        done = subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode < 0


def read_alone(code: str) -> None:
    """Read a pipeline without prototrain, from several iterators that are dropped."""
    with tempfile.TemporaryDirectory() as home:
        make = Workshop(Path(home)).maker(code)
        for batches in range(POSITIONS):
            list(itertools.islice(make()["trn"].prefetch(2), batches + 1))


class _Alarm:
    """Kills a process that has not said anything for too long."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._killed, self._stopped = process, False, False
        self._heard = time.monotonic()
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._watch)

    def restart(self) -> None:
        self._heard = time.monotonic()

    def stop(self) -> bool:
        self._stopped = True
        self._thread.shutdown()
        return self._killed

    def _watch(self) -> None:
        while not self._stopped:
            time.sleep(0.2)
            if time.monotonic() - self._heard > LONGEST:
                self._killed = True
                self._process.kill()
                return


def main() -> int:
    """Examine as many pipelines as the command line asks for; print the counts and each counterexample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="go on behind the pipelines of an earlier run")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--worker", nargs=3, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        read_alone(arguments.alone)
        return 0
    if arguments.worker:
        worker(*arguments.worker)
        return 0
    counts: Counter[str] = Counter()
    problems = []

    def report(code: str, outcome: Outcome) -> None:
        counts[outcome.kind] += 1
        if outcome.problem:
            problems.append(code)
            print(f"NOT EXACT ({outcome.kind}): {outcome.problem}\n    {code}", flush=True)
        if counts.total() % 100 == 0:
            print(dict(counts), flush=True)

    share = -(-arguments.pipelines // arguments.processes)
    begin = time.monotonic()
    with ThreadPoolExecutor(arguments.processes) as pool:
        last = arguments.first + arguments.pipelines
        ranges = [(low, min(low + share, last)) for low in range(arguments.first, last, share)]
        for future in [pool.submit(supervise, arguments.seed, *each, report) for each in ranges]:
            future.result()
    print(f"{counts.total()} pipelines in {time.monotonic() - begin:.0f} s, seed {arguments.seed}: {dict(counts)}")
    print(f"{len(problems)} that are not what they claim to be")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
