"""Callbacks that are used for a second trainer do what new ones would do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest

from prototrain import Callback
from prototrain.callbacks import (
    EarlyStopping,
    ExponentialMovingAverage,
    HyperParam,
    HyperParamSetterWithFunc,
    InferenceRunner,
    KerasCallback,
    KerasMetric,
    MaxSaver,
    MinSaver,
    ModelSaver,
    MovingAverageSummary,
    SaveOnExit,
    ScheduledHyperParamSetter,
    StartProcOrThread,
    StatMonitorParamSetter,
    Summaries,
    Validation,
)
from prototrain.errors import CallbackError
from tests.tiny import tiny_trainer, values

KNOB = SimpleNamespace(value=1.0)


def halves(value: float) -> float:
    return value / 2


def knob() -> HyperParam:
    return HyperParam(KNOB, "value", name="knob")


LISTS: dict[str, Callable[[], list[Callback]]] = {
    "a table, averages, savers, Keras": lambda: [
        ScheduledHyperParamSetter("learning_rate", [(1, 0.5), (2, 0.05)]),
        HyperParamSetterWithFunc(knob(), lambda epoch, value: value / 2),
        ExponentialMovingAverage(0.8),
        ModelSaver(max_to_keep=2, keep_every_n_hours=1).every(steps=3),
        MovingAverageSummary("loss"),
        InferenceRunner("vld", KerasMetric(keras.metrics.SparseCategoricalAccuracy(), "y", "logits"), prefix="metric"),
        KerasCallback(keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, mode="max")),
    ],
    "plateaus, best savers": lambda: [
        StatMonitorParamSetter("learning_rate", "vld/loss", halves, mode="max", last_k=2).every(steps=2),
        StatMonitorParamSetter(knob(), "vld/loss", halves, mode="max", last_k=2).every(steps=2),
        MinSaver("vld/loss").every(steps=2),
        MaxSaver("vld/accuracy").every(steps=2),
        MovingAverageSummary(pattern="acc.*"),
    ],
    "a function, early stopping": lambda: [
        HyperParamSetterWithFunc("learning_rate", lambda epoch, value: value / 2),
        EarlyStopping("vld/loss", mode="max", patience=3, restore_best=True).every(steps=2),
    ],
}


def run(callbacks: list[Callback], directory: Path) -> dict[str, Any]:
    """Train a new trainer; returns all that a list of callbacks can have an influence on."""
    trainer = tiny_trainer(directory)
    trainer.train([Validation().every(steps=2), Summaries().every(steps=2), *callbacks, SaveOnExit()], max_steps=15)
    return {
        "scalars": trainer.monitors.state_dict(),
        "variables": values(trainer),
        "callbacks": trainer.callbacks.state_dict()["states"],
        "checkpoints": trainer.run.checkpoints.steps(),
        "notes": sorted(path.read_bytes() for path in (directory / "checkpoints").glob("m*.json")),
    }


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    states = {key: {**state, "kept_at": None, "values": None} for key, state in found["callbacks"].items()}
    return {**found, "callbacks": states}


@pytest.mark.parametrize("name", LISTS)
def test_a_second_trainer_has_what_new_callbacks_would_give_it(name: str, tmp_path: Path) -> None:
    KNOB.value = 1.0
    used = LISTS[name]()
    first = without_times(run(used, tmp_path / "first"))
    again = without_times(run(used, tmp_path / "again"))
    assert again == first


def test_a_trainer_that_is_trained_further_keeps_what_its_callbacks_had() -> None:
    stopping = EarlyStopping("vld/loss", mode="max", patience=50)
    trainer = tiny_trainer()
    trainer.train([Validation(), stopping], steps_per_epoch=5, max_steps=10)
    best = stopping.best.value
    trainer.train([Validation(), stopping], steps_per_epoch=5, max_steps=15)
    assert stopping.best.value == best and stopping.best.step == 5


def test_a_thread_is_started_once() -> None:
    starter = StartProcOrThread(threading.Thread(target=lambda: None))
    tiny_trainer().train([starter], max_steps=1)
    with pytest.raises(CallbackError, match="was started before"):
        tiny_trainer().train([starter], max_steps=1)
