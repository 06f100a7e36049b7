"""A run that is killed at random moments until it is complete equals an undisturbed one in every bit."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from prototrain import Callback, SyncReplicatedTrainer, default_callbacks
from prototrain.towers import make_cpu_devices
from tests.preloaded import Program
from tests.tiny import environment, rows, tiny_model

STEPS = 120
READY, MADE = re.compile("before the first step"), re.compile(r"made step (\d+)")


class MovingAverage(Callback):
    """Keeps a moving average of the loss on the host, and prints the progress."""

    def __init__(self) -> None:
        self.average = 0.0

    def before_train(self) -> None:
        print("before the first step", flush=True)

    def trigger_step(self) -> None:
        self.average = 0.9 * self.average + 0.1 * self.trainer.outputs["loss"]
        self.trainer.monitors.put_scalar("trn/average", self.average)
        print(f"made step {self.trainer.global_step}", flush=True)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = state["average"]


def train(directory: Path) -> None:
    """Train on two towers, with every kind of state, and saves often enough to be killed in."""
    make_cpu_devices(2)
    model = tiny_model(
        model__lr_schedule__method="exp",
        model__lr_schedule__exp__value=0.01,
        model__lr_schedule__exp__decay_rate=0.9,
        model__lr_schedule__exp__decay_steps=100,
        trainer__validation_step_interval=20,
        trainer__validation_batches=2,
        trainer__summary_save_interval=1,
        trainer__checkpoint_save_interval=15,
        trainer__max_checkpoints_to_keep=2,
        trainer__keep_best="vld/loss",
    )
    trainer = SyncReplicatedTrainer(model, towers="cpu:2", experiment=directory)
    trainer.train([MovingAverage(), *default_callbacks(model)], max_steps=STEPS)


def read(process: Program, until: re.Pattern[str]) -> str:
    """Read what a run prints up to a line, and return this line."""
    return next((line for line in process.stdout if until.search(line)), "")


def results(directory: Path) -> dict[str, Any]:
    checkpoint = max((directory / "checkpoints").glob("step-*"))
    meta = json.loads((checkpoint / "meta.json").read_text())["meta"]
    kept = ("step", "values", "callbacks", "monitors")
    return {
        "rows": rows(directory),
        "variables": meta["files"]["model.data-00000-of-00001"]["sha256"],
        **{key: meta[key] for key in kept},
    }


@pytest.mark.slow
def test_killed_run_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    chance, killed = random.Random(0), tmp_path / "killed"
    # The reference runs in a new interpreter with another hash seed, which must not change the result.
    command = [sys.executable, "-m", "tests.test_storm", str(tmp_path / "straight")]
    subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, check=True)

    def start() -> Program:
        return Program(["-m", "tests.test_storm", str(killed)], environment())

    # While the first step is traced,
    process = start()
    read(process, READY)
    timer = threading.Timer(chance.uniform(0, 2), process.send_signal, [signal.SIGKILL])
    timer.start()
    read(process, MADE)
    timer.cancel()
    process.kill()
    # and during a later step or save.
    process, goal, made = start(), chance.randint(30, STEPS - 50), 0
    while made < goal:
        made = int(MADE.findall(read(process, MADE))[-1])
    time.sleep(chance.uniform(0, 0.02))
    process.kill()
    code, said = start().finish()
    assert code == 0, said
    assert "resumed at step" in said and results(killed) == results(tmp_path / "straight")
    left = [path.name for path in (killed / "checkpoints").iterdir() if not path.name.startswith(("step-", "min-"))]
    assert left == []


if __name__ == "__main__":
    train(Path(sys.argv[1]))
