"""prototrain and what people would use instead: the same model, data, Adam and number of steps, in turns.

    pip install torch lightning jax optax tensorpack       # what is not installed is left out
    pip install --no-deps tf-models-official tf_keras      # Orbit, and the layers for tensorpack
    python -m benchmarks.peers                             # some ten minutes
    python -m benchmarks.peers --workload mlp --only prototrain JAX --rounds 3 --output results

Each of them is a process. All import what they need at once, then each does its first turn, with the others waiting:
it makes its model, traces or compiles it, and does the steps of a turn. What that takes above the steps is the *start*.
Then they take turns, and a figure is the seconds of such a turn, divided by those of prototrain's turn in the same
round. The number of parameters must be the same for all. Data is in memory, in batches, float32; all have the same
cores. What each does besides the steps, every 50 steps for a loss and every 1,000 for a checkpoint:

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
from tabulate import tabulate

from benchmarks.peers.turns import Turns, read

OURS = "prototrain, usual callbacks"
BATCHES = 16  # in memory


class Peer(NamedTuple):
    """One of those that are compared.

    Attributes:
        besides: what it does besides the steps.
        function: what trains in turns, "module:function".
        options: for it.
        needs: modules, without which it is left out.
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
    """Something that cannot take part, and why."""


class Process:
    """One that trains in turns.

    Args:
        title: one of `PEERS`.
        options: for the command line of the child.
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
        """Let it take its turn."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def reply(self) -> dict[str, float]:
        """The next message: everything is imported, or the figures of a turn.

        Raises:
            LeftOut: it has failed; with the last line that it has printed.
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
        """Do not wait for what comes after its last turn."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def measure(name: str, titles: list[str], rounds: int, steps: int | None = None) -> dict[str, list[dict[str, float]]]:
    """The turns of each of them, the first one with the start; Ctrl-C ends them after the rounds that are complete.

    Raises:
        SystemExit: prototrain has failed, or they do not train the same number of parameters.
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
    """A row for each, with the time for a step next to that of prototrain in the same round."""
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
    return tabulate(rows, headers=headers, disable_numparse=True)


def chosen(only: list[str]) -> list[str]:
    """The titles that have one of these texts, and prototrain's, less those that are not installed; says which."""
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
    """Train in turns in this process."""
    batches, turns = read(data), Turns(steps, rounds + 1)
    module, function = PEERS[title].function.split(":")
    train = getattr(importlib.import_module(f"benchmarks.peers.{module}"), function)
    train(name, batches, turns, **PEERS[title].options)


def main(arguments: list[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=[*NAMES, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=5, help="how often each takes its turn")
    parser.add_argument("--steps", type=int, help="steps of a turn; by default some seconds' worth")
    parser.add_argument(
        "--only", nargs="+", default=[], help="those whose title has one of these texts, and prototrain"
    )
    parser.add_argument("--cores", type=int, default=2, help="that each of them may use")
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
