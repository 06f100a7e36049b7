"""Compares prototrain with other libraries on the same model, data, optimizer and number of steps.

    pip install torch lightning jax optax tensorpack       # libraries that are not installed are left out
    pip install --no-deps tf-models-official tf_keras      # Orbit, and the layers for tensorpack
    python -m benchmarks.peers                             # about ten minutes
    python -m benchmarks.peers --workload mlp --only prototrain JAX --rounds 3 --output results

Each candidate is a process. All processes import their libraries; then they run in turns, one at a time. The first
turn builds the model, compiles it and runs some steps; its time beyond that of the steps is the *start*. A figure is
the time of a later turn divided by prototrain's time in the same round. All models must have the same number of
parameters. The data is in memory, in batches; all processes use the same cores. Besides the steps, each candidate does
the following, with losses every 50 steps and checkpoints every 1,000 steps:

{besides}
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.turns import Turns, read
from prototrain.system.terminal import Table

OURS = "prototrain, usual callbacks"
BATCHES = 16  # in memory


class Peer(NamedTuple):
    """One candidate.

    Attributes:
        besides: what it does besides the steps.
        function: the function that trains in turns, "module:function".
        options: keyword arguments of the function.
        needs: the modules it needs; it is left out if one is not installed.
    """

    besides: str
    function: str
    options: Mapping[str, Any] = {}
    needs: tuple[str, ...] = ()


_USUAL = "losses to TensorBoard, metrics.jsonl and a table, progress bar, checkpoints, StopOnNaN"
_KERAS = "losses to TensorBoard, progress bar with the mean loss, checkpoints"
_HAND = "prints losses"
PEERS = {
    OURS: Peer(_USUAL, "of_tensorflow:prototrain"),
    **{
        f"prototrain, model.jit_compile: {form}": Peer(_USUAL, "of_tensorflow:prototrain", {"form": form})
        for form in (True, "loop", "auto")
    },
    "prototrain, usual and a per-step callback": Peer(_USUAL, "of_tensorflow:prototrain", {"each_step": True}),
    "prototrain, loss only": Peer("losses to metrics.jsonl", "of_tensorflow:prototrain", {"usual": False}),
    "one graph call, the limit": Peer("nothing", "of_tensorflow:one_call"),
    "Keras fit as it comes": Peer(_KERAS, "of_tensorflow:keras_fit"),
    **{
        f"Keras fit, {n} steps per execution, {title}": Peer(
            _KERAS, "of_tensorflow:keras_fit", {"at_once": n, "jit": jit}
        )
        for n in (10, 50, 100)
        for jit, title in ((False, "no XLA"), (True, "XLA"))
    },
    "Orbit, 50 steps per loop": Peer(
        "losses to TensorBoard, checkpoints", "of_tensorflow:orbit_loop", needs=("orbit", "tf_keras")
    ),
    "tensorpack": Peer(
        "losses to TensorBoard and as JSON, their moving average at each step, progress bar, checkpoints",
        "of_tensorpack:train",
        needs=("tensorpack", "tf_keras"),
    ),
    "PyTorch by hand": Peer(_HAND, "of_torch:by_hand", needs=("torch",)),
    "PyTorch by hand, torch.compile": Peer(_HAND, "of_torch:by_hand", {"compiled": True}, ("torch",)),
    "Lightning": Peer("losses as CSV, progress bar", "of_torch:lightning", needs=("torch", "lightning")),
    "JAX by hand, jit": Peer(_HAND, "of_jax:by_hand", needs=("jax", "optax")),
    "JAX by hand, lax.scan over 50 steps": Peer(_HAND, "of_jax:by_hand", {"at_once": 50}, ("jax", "optax")),
}
NAMES = ("mlp", "resnet18", "transformer", "lstm")  # of the workloads
__doc__ = (__doc__ or "").format(besides="\n".join(f"{title:42s} {peer.besides}" for title, peer in PEERS.items()))


class LeftOut(Exception):
    """A candidate cannot take part; the message says why."""


class Process:
    """The process of one candidate.

    Args:
        title: a key of `PEERS`.
        options: command line options of the process.
        scratch: a directory for its files.
    """

    def __init__(self, title: str, options: list[str], scratch: str) -> None:
        kept = f"{tempfile.gettempdir()}/torchinductor"  # what torch.compile has compiled, as it is kept by default
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers", "--child", title, *options],
            env={"TORCHINDUCTOR_CACHE_DIR": kept, **os.environ, "TMPDIR": scratch, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def take(self) -> None:
        """Start its next turn."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def reply(self) -> dict[str, float]:
        """Wait for the next message: empty after the imports, the figures after a turn.

        Raises:
            LeftOut: The process failed; the message is the last line it printed.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            found: dict[str, float] = json.loads(line)
            return found
        self._errors.seek(0)
        printed = [one.strip() for one in self._errors if one.strip()]
        raise LeftOut(printed[-1] if printed else f"exit code {self._process.wait()}")

    def end(self) -> None:
        """Kill the process; what it does after its last turn does not matter."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def measure(name: str, titles: list[str], rounds: int, steps: int | None = None) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each candidate's turns; the first turn includes the start.

    Ctrl-C ends the measurement and keeps the complete rounds.

    Raises:
        SystemExit: prototrain failed, or the numbers of parameters differ.
    """
    from benchmarks.workloads import WORKLOADS, pair

    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory() as scratch:
        data = list(workload.batches(pair).take(BATCHES).as_numpy_iterator())
        path = Path(scratch) / "batches.npz"
        np.savez(path, x=np.stack([x for x, _ in data]), y=np.stack([y for _, y in data]))
        options = ["--workload", name, "--data", str(path), "--rounds", str(rounds)]
        options += ["--steps", str(steps or workload.steps)]
        processes = {title: Process(title, options, scratch) for title in titles}
        turns: dict[str, list[dict[str, float]]] = {title: [] for title in titles}
        try:
            for number in range(rounds + 1):
                for title, process in list(processes.items()):
                    try:
                        if number == 0:
                            process.reply()  # it has imported everything
                        process.take()
                        turns[title].append(process.reply())
                    except LeftOut as error:
                        _leave_out(title, str(error))
                        del turns[title]
                        processes.pop(title).end()
        except KeyboardInterrupt:
            complete = min(map(len, turns.values()))
            if complete < 2:
                raise
            print(f"stopped after {complete - 1} rounds", flush=True)
            turns = {title: found[:complete] for title, found in turns.items()}
        finally:
            for process in processes.values():
                process.end()
    counts = {title: found[0]["parameters"] for title, found in turns.items()}
    if len(set(counts.values())) > 1:
        raise SystemExit(f"{name}: not the same model, the numbers of parameters are {counts}")
    return turns


def _leave_out(title: str, why: str) -> None:
    if title == OURS:
        raise SystemExit(f"{title}: {why}")
    print(f"left out: {title}: {why}", flush=True)


def table(turns: Mapping[str, list[dict[str, float]]], steps: int) -> str:
    """Format a row per candidate: its time per step and the ratio to prototrain in the same round."""
    seconds = {title: [turn["seconds"] for turn in found[1:]] for title, found in turns.items()}
    rows = []
    for title, taken in seconds.items():
        middle = statistics.median(taken)
        ratios = [one / ours for one, ours in zip(taken, seconds[OURS], strict=True)]
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        start = turns[title][0]["seconds"] - middle
        last = turns[title][-1]
        rows.append(
            [
                title,
                f"{1e3 * middle / steps:.3g}",
                f"{statistics.median(ratios):.2f} {spread}",
                f"{start:.1f}",
                f"{last['megabytes']:.0f}",
                f"{last['loss']:.3f}",
            ]
        )
    headers = ["", "ms/step", "time, to prototrain's", "start, s", "peak, MB", "last loss"]
    return str(Table(rows, headers))


def chosen(only: list[str]) -> list[str]:
    """Return prototrain and the installed candidates whose title contains one of the texts; print those left out."""
    found = []
    for title, peer in PEERS.items():
        if title != OURS and only and not any(text in title for text in only):
            continue
        missing = [name for name in peer.needs if not importlib.util.find_spec(name)]
        if missing:
            print(f"left out: {title}: {', '.join(missing)} not installed", flush=True)
        else:
            found.append(title)
    return found


def child(title: str, name: str, data: Path, steps: int, rounds: int) -> None:
    """Train one candidate in turns in this process."""
    batches, turns = read(data), Turns(steps, rounds + 1)
    module, function = PEERS[title].function.split(":")
    train = getattr(importlib.import_module(f"benchmarks.peers.{module}"), function)
    train(name, batches, turns, **PEERS[title].options)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=[*NAMES, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=5, help="number of turns per candidate")
    parser.add_argument("--steps", type=int, help="steps per turn (default: those of the workload)")
    parser.add_argument(
        "--only", nargs="+", default=[], help="only prototrain and titles that contain one of these texts"
    )
    parser.add_argument("--cores", type=int, default=2, help="cores per process")
    parser.add_argument("--output", type=Path, help="a directory for peers.json")
    parser.add_argument("--child", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child, options.workload, options.data, options.steps, options.rounds)
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    from benchmarks.workloads import WORKLOADS

    titles = chosen(options.only)
    results = {}
    for name in NAMES if options.workload == "all" else [options.workload]:
        workload = WORKLOADS[name]
        steps = options.steps or workload.steps
        results[name] = measure(name, titles, options.rounds, steps)
        parameters = results[name][OURS][0]["parameters"]
        print(f"\n{workload.title}, {parameters:,.0f} parameters, batch {workload.batch}")
        print(table(results[name], steps), flush=True)
        if options.output is not None:
            options.output.mkdir(parents=True, exist_ok=True)
            record = {"cores": options.cores, "results": results}
            (options.output / "peers.json").write_text(json.dumps(record, indent=2))
