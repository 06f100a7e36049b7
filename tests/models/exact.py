"""Compares resumed runs with uninterrupted ones, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prototrain.callbacks import Callback, LearningRate, ModelSaver, StopOnNaN
from prototrain.schedules import from_config
from prototrain.trainers.tower import TowerTrainer
from tests.tiny import values_of_towers

CUT, END = 4, 9


def train(trainer: TowerTrainer, steps: int) -> TowerTrainer:
    """Train like `prototrain run`, without callbacks that only print or write."""
    schedule = from_config(trainer.config)
    callbacks: list[Callback] = [] if schedule is None else [LearningRate(schedule)]
    if trainer.experiment is not None:
        callbacks.append(ModelSaver().every(steps=CUT))
    trainer.train([*callbacks, StopOnNaN()], max_steps=steps, steps_per_epoch=5)
    return trainer


def assert_resumes_exactly(make: Callable[[Path], Any], directory: Path) -> TowerTrainer:
    """Compare a run of `END` steps with one of another trainer, which is returned, that resumes after `CUT`."""
    whole = values_of_towers(train(make(directory), END))
    for checkpoint in (directory / "checkpoints").glob("step-*"):
        if checkpoint.name != f"step-{CUT:010}":
            shutil.rmtree(checkpoint)
    resumed = train(make(directory), END)
    assert resumed.data.mode in ("iterator", "replay")
    assert resumed.run.start_row().startswith(f"resumed at step {CUT}")
    assert values_of_towers(resumed) == whole
    return resumed
