from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prototrain import Callback
from prototrain.callbacks import CallbackFactory, EarlyStopping, SaveOnExit
from prototrain.callbacks.base import Priority
from tests.tiny import CountingTrainer, tiny_trainer

VALUES = [5.0, 3.0, 4.0, 2.9, 3.0, 2.0, 2.0, 2.0, 2.0, 1.0]


def measure() -> Callback:
    return CallbackFactory(
        trigger=lambda self: self.trainer.monitors.put_scalar("vld/x", VALUES[self.trainer.global_step - 1]),
        priority=Priority.EVALUATE,
    ).every(steps=1)


@pytest.mark.parametrize(
    ("options", "stops_at"),
    [
        ({"mode": "min", "patience": 1}, 3),
        ({"mode": "min", "patience": 2}, 8),
        ({"mode": "min", "patience": 2, "min_delta": 0.5}, 4),
        ({"mode": "max", "patience": 4}, 5),
        ({"mode": "min", "patience": 9}, 10),
    ],
)
def test_when_it_stops(options: dict[str, Any], stops_at: int) -> None:
    trainer = CountingTrainer()
    trainer.train([measure(), EarlyStopping("vld/x", **options).every(steps=1)], max_steps=10)
    assert trainer.global_step == stops_at


@pytest.mark.parametrize("stop", [1, 4, 7, 8])
def test_patience_survives_a_resume(stop: int, experiment: Path) -> None:
    for max_steps in (stop, 10, 10):
        trainer = CountingTrainer(experiment=experiment)
        stopping = EarlyStopping("vld/x", mode="min", patience=2)
        trainer.train([measure(), stopping.every(steps=1), SaveOnExit()], max_steps=max_steps)
    assert trainer.global_step == 8  # the third run ends where it begins
    patient = CountingTrainer(experiment=experiment)
    patient.train([measure(), EarlyStopping("vld/x", mode="min", patience=5).every(steps=1)], max_steps=10)
    assert patient.global_step == 10


class Weights(Callback):
    priority = Priority.EVALUATE

    def __init__(self) -> None:
        self.by_step: dict[int, list[Any]] = {}

    def trigger_step(self) -> None:
        self.by_step[self.trainer.global_step] = [v.numpy() for v in self.trainer.model_variables.values()]


def same(a: list[Any], b: list[Any]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("stop", [None, 7])
def test_the_best_weights_come_back(stop: int | None, experiment: Path) -> None:
    seen = Weights()
    for max_steps in (10,) if stop is None else (stop, 10):
        trainer = tiny_trainer(experiment)
        stopping = EarlyStopping("vld/x", mode="min", patience=2, restore_best=True)
        trainer.train([measure(), stopping.every(steps=1), seen, SaveOnExit()], max_steps=max_steps)
        if max_steps != 10:  # over before it fires
            assert same(seen.by_step[max_steps], [v.numpy() for v in trainer.variables.values()])
    now = [v.numpy() for v in trainer.variables.values()]
    assert trainer.global_step == 8
    assert same(now, seen.by_step[6]) and not same(now, seen.by_step[7])
    saved = trainer.run.checkpoints.newest()
    assert saved is not None and saved.step == 8
    assert same(now, [saved.variables()[name] for name in trainer.variables])


def test_it_can_join_a_run_later(experiment: Path) -> None:
    tiny_trainer(experiment).train([SaveOnExit()], max_steps=2)
    trainer = tiny_trainer(experiment)
    stopping = EarlyStopping("vld/x", mode="min", patience=9, restore_best=True)
    trainer.train([measure(), stopping.every(steps=1), SaveOnExit()], max_steps=4)
    assert "callback EarlyStopping/vld/x added" in trainer.run.resume_line()
    left = tiny_trainer(experiment)
    left.train([SaveOnExit()], max_steps=5)
    assert "callback EarlyStopping/vld/x gone" in left.run.resume_line()
