from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import ModelDict, SimpleTrainer
from prototrain.callbacks import (
    Callback,
    EarlyStopping,
    ExponentialMovingAverage,
    GradientNorm,
    InferenceRunner,
    KerasMetric,
    MinSaver,
    MovingAverageSummary,
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


class Clips(Callback):
    def after_run(self, outputs: dict[str, Any]) -> None:
        kernel = self.trainer.trained_variables["logits/kernel"]
        kernel.assign(tf.clip_by_value(kernel, -0.5, 0.5))


def trained(trainer: Any) -> list[Any]:
    """Train with callbacks of all kinds; returns the tensors that `ProcessTensors` has seen."""
    seen: list[Any] = []
    auc = KerasMetric(keras.metrics.AUC(name="auc"), "y", "probability")
    trainer.train(
        [
            *(GradientNorm(), StopOnNaN(), TensorBoardWriter(), SaveOnExit()),
            Clips(),
            ExponentialMovingAverage(0.9),
            ScheduledHyperParamSetter("learning_rate", [(4, 0.005)], step_based=True),
            MovingAverageSummary("loss").every(steps=4),
            Summaries().every(steps=4),
            ProcessTensors(["x", "fc0", "loss"], lambda *arrays: seen.append(arrays)).every(steps=4),
            Validation().every(steps=4),
            InferenceRunner("vld", [ScalarStats("loss"), auc], prefix="inference").every(steps=4),
            EarlyStopping("vld/loss", mode="min", patience=9, restore_best=True).every(steps=4),
            MinSaver("vld/loss").every(steps=4),
        ],
        max_steps=12,
    )
    return seen


def test_two_towers_equal_one(tmp_path: Path) -> None:
    one = SimpleTrainer(tiny_model(build=build), experiment=tmp_path / "one")
    two = SyncReplicatedTrainer(tiny_model(build=build), "cpu:2", experiment=tmp_path / "two")
    for mine, theirs in zip(trained(one), trained(two), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    names = one.monitors.names()
    assert {"trn/gradient_norm", "trn/loss_average", "inference/auc", "vld/loss"} <= set(names)
    for name in names:
        assert dict(one.monitors.history(name)) == pytest.approx(dict(two.monitors.history(name)), rel=1e-4), name
    theirs = averaged_weights(two.state)
    for name, average in averaged_weights(one.state).items():
        np.testing.assert_allclose(average.numpy(), theirs[name].numpy(), rtol=1e-4, atol=1e-6)
    a, b = (trainer.get_predictor(["x"], ["logits"])(tiny_arrays(3)["x"])[0] for trainer in (one, two))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
