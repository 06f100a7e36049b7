from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import ModelDict, SimpleTrainer
from prototrain.callbacks import (
    AssignVariables,
    EarlyStopping,
    ExponentialMovingAverage,
    GradientNorm,
    InferenceRunner,
    KerasMetric,
    MinSaver,
    MovingAverageSummary,
    PeriodicCallback,
    ProcessTensors,
    SaveOnExit,
    ScalarStats,
    ScheduledHyperParamSetter,
    StopOnNaN,
    Summaries,
    TensorBoardWriter,
    Validation,
    averaged_weights,
)
from prototrain.trainers.replicated import SyncReplicatedTrainer
from tests.tiny import tiny_arrays, tiny_model


def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = ModelDict()
    net.x = inputs["x"]
    net.fc0 = keras.layers.Dense(6, activation="relu", name="fc0")(net.last)
    net.logits = keras.layers.Dense(2, name="logits")(net.last)
    net.probability = tf.nn.softmax(net.logits)[:, 1]
    if "y" in inputs:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=net.logits)
        net.loss = tf.reduce_mean(losses)
    if train_phase:
        tf.summary.histogram("hidden", net.fc0)
    return net


class Run:
    def __init__(self, experiment: Path, towers: int) -> None:
        model: Any = tiny_model(build=build)
        self.seen: list[Any] = []
        self.trainer: Any = (
            SimpleTrainer(model, experiment=experiment)
            if towers == 1
            else SyncReplicatedTrainer(model, experiment=experiment, towers=towers)
        )
        auc = KerasMetric(keras.metrics.AUC(name="auc"), "y", "probability")
        self.trainer.train(
            [
                *(GradientNorm(), StopOnNaN(), TensorBoardWriter(), SaveOnExit()),
                AssignVariables(lambda variable: tf.clip_by_value(variable, -0.5, 0.5), "logits/kernel"),
                PeriodicCallback(ExponentialMovingAverage(0.9), every_k_steps=2),
                ScheduledHyperParamSetter("learning_rate", [(4, 0.005)], step_based=True),
                MovingAverageSummary("loss").every(steps=4),
                Summaries().every(steps=4),
                ProcessTensors(["x", "fc0", "loss"], lambda *arrays: self.seen.append(arrays)).every(steps=4),
                Validation().every(steps=4),
                InferenceRunner("vld", [ScalarStats("loss"), auc], prefix="inference").every(steps=4),
                EarlyStopping("vld/loss", mode="min", patience=9, restore_best=True).every(steps=4),
                MinSaver("vld/loss").every(steps=4),
            ],
            max_steps=12,
        )


def test_two_towers_equal_one(tmp_path: Path) -> None:
    one, two = Run(tmp_path / "one", 1), Run(tmp_path / "two", 2)
    names = one.trainer.monitors.names()
    assert {"trn/gradient_norm", "trn/loss_average", "inference/auc", "vld/loss"} <= set(names)
    for name in names:
        mine, theirs = (dict(run.trainer.monitors.history(name)) for run in (one, two))
        assert mine == pytest.approx(theirs, rel=1e-4), name
    for mine, theirs in zip(one.seen, two.seen, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    mine, theirs = (averaged_weights(run.trainer.state) for run in (one, two))
    for name, average in mine.items():
        np.testing.assert_allclose(average.numpy(), theirs[name].numpy(), rtol=1e-4, atol=1e-6)
    a, b = (run.trainer.get_predictor(["x"], ["logits"])(tiny_arrays(3)["x"])[0] for run in (one, two))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
