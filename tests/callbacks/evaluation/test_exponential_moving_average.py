from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prototrain import Callback
from prototrain.callbacks import (
    CallbackFactory,
    ExponentialMovingAverage,
    InferenceRunner,
    MinSaver,
    ScalarStats,
    StopOnNaN,
    Validation,
    averaged_weights,
)
from tests.tiny import Records, tiny_trainer, values


def trainable(trainer: Any) -> dict[str, Any]:
    return {name: v.numpy() for name, v in trainer.trainable.items()}


def averages(trainer: Any) -> dict[str, Any]:
    return {name: v.numpy() for name, v in averaged_weights(trainer.state).items()}


def test_averages_weights_and_restarts_from_loaded_weights() -> None:
    trainer, average, weights = tiny_trainer(), ExponentialMovingAverage(0.8), Records(trainable)
    expected = trainable(trainer)
    trainer.train([average, weights, StopOnNaN()], max_steps=6)
    for step in range(1, 7):
        expected = {name: 0.8 * e + 0.2 * weights.by_step[step][name] for name, e in expected.items()}
    found = averages(trainer)
    assert found.keys() == expected.keys() == trainer.trainable.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7)
    trainer.load_weights({name: np.full(v.shape, 3.0, np.float32) for name, v in trainer.trainable.items()})
    trainer.train([average, weights], max_steps=7)
    for name, value in averages(trainer).items():
        np.testing.assert_allclose(value, 0.8 * 3.0 + 0.2 * weights.by_step[7][name], rtol=1e-6)


def test_averages_belong_to_the_runs_with_the_callback() -> None:
    trainer = tiny_trainer()
    trainer.train([ExponentialMovingAverage(0.9)], max_steps=4)
    kept = averages(trainer)
    trainer.train([ExponentialMovingAverage(0.9)], max_steps=4)  # no step: the averages continue
    for name, value in averages(trainer).items():
        np.testing.assert_array_equal(value, kept[name])
    trainer.train([], max_steps=8)
    assert averages(trainer) == {}
    now = trainable(trainer)
    trainer.train([ExponentialMovingAverage(0.9)], max_steps=8)
    for name, value in averages(trainer).items():
        np.testing.assert_array_equal(value, now[name])


def test_only_evaluation_uses_the_averages(experiment: Path) -> None:
    average = ExponentialMovingAverage(0.9)
    inside: list[Any] = []

    def measure(self: CallbackFactory) -> None:
        with average.applied():
            inside.append(trainable(self.trainer))
            inside.append(self.trainer.evaluate("vld")["loss"])

    def callbacks() -> list[Callback]:
        return [Validation().every(steps=4), InferenceRunner("vld", ScalarStats("loss"), prefix="b").every(steps=4)]

    with_average, without = tiny_trainer(experiment), tiny_trainer()
    saver = MinSaver("vld/loss").every(steps=4)
    with_average.train([*callbacks(), average, CallbackFactory(trigger=measure).every(steps=4), saver], max_steps=8)
    without.train(callbacks(), max_steps=8)
    assert all(values(with_average)[name] == bits for name, bits in values(without).items())
    found = averages(with_average)
    assert all(np.array_equal(found[name], value) for name, value in inside[2].items())
    vld, b = (with_average.monitors.latest(name) for name in ("vld/loss", "b/loss"))
    assert vld == inside[3] == pytest.approx(b) and vld != without.monitors.latest("vld/loss")
    # The best weights are those that were measured.
    note = json.loads((experiment / "checkpoints" / "min-vld-loss.json").read_text())
    assert with_average.evaluate("vld")["loss"] != pytest.approx(note["value"], rel=1e-5)
    with_average.load_weights(with_average.experiment, checkpoint="best")
    without.load_weights(experiment, checkpoint="best")
    for trainer in (with_average, without):
        assert trainer.evaluate("vld")["loss"] == pytest.approx(note["value"], rel=1e-5)
