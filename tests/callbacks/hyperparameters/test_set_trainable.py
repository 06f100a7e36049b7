from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import AsyncTrainer, Callback, ModelDict, SyncReplicatedTrainer
from prototrain.callbacks import ExponentialMovingAverage, HyperParamSetterWithFunc, ModelSaver, SetTrainable
from prototrain.errors import CallbackError, ModelError, PrototrainError
from prototrain.trainers.tower import SimpleTrainer, TowerTrainer
from tests.tiny import tiny_model, values


def build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """A backbone that is frozen at first, with a head and a variable of no layer."""
    net = ModelDict()
    layers = [keras.layers.Dense(6, activation="relu", name="fc"), keras.layers.BatchNormalization(name="bn")]
    backbone = keras.Sequential([keras.Input((4,)), *layers], name="backbone")
    backbone.trainable = False
    scale = tf.Variable(1.0, name="scale")
    features = backbone(inputs["x"], training=train_phase)
    net.features = tf.cast(scale, features.dtype) * features
    net.logits = keras.layers.Dense(2, name="head", kernel_regularizer="l2")(net.features)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=tf.cast(net.logits, tf.float32))
    net.loss = tf.reduce_mean(losses)
    return net


def simple(experiment: Path | None = None, **config: Any) -> SimpleTrainer:
    return SimpleTrainer(tiny_model(build=build, **config), experiment=experiment)


def towers(experiment: Path | None = None, **config: Any) -> SyncReplicatedTrainer:
    return SyncReplicatedTrainer(tiny_model(build=build, **config), towers="cpu:2", experiment=experiment)


def weights(trainer: TowerTrainer) -> dict[str, bytes]:
    return {name: bits for name, bits in values(trainer).items() if name in trainer.variables}


class Changed(Callback):
    """Records which variables each step changes."""

    def before_train(self) -> None:
        self.by_step: dict[int, set[str]] = {}
        self._last = weights(self.trainer)

    def trigger_step(self) -> None:
        now = weights(self.trainer)
        self.by_step[self.trainer.global_step] = {name for name in now if now[name] != self._last[name]}
        self._last = now


KERNEL = {"backbone/fc/kernel"}
HEAD = {"head/kernel", "head/bias"}
DENSE = {"backbone/fc/kernel", "backbone/fc/bias"}
NORM = {"backbone/bn/" + name for name in ("gamma", "beta", "moving_mean", "moving_variance")}


def test_changes_at_steps_and_epochs() -> None:
    trainer, changed = simple(), Changed()
    callbacks = [
        SetTrainable("backbone/fc", True).at(step=0),
        SetTrainable("head|scale", False).at(step=1),
        SetTrainable(".*fc/bias", False).at(step=np.int64(2)),
        SetTrainable("backbone/bn", True).at(step=3),
        SetTrainable("head", True).at(step=4),
        SetTrainable("backbone", False).at(step=4),
        SetTrainable("scale", True).at(epoch=1),
    ]
    trainer.train([*callbacks, changed], max_steps=6)
    expected = [DENSE | HEAD | {"scale"}, DENSE, KERNEL, KERNEL | NORM, HEAD, HEAD | {"scale"}]
    assert list(changed.by_step.values()) == expected


DECAY = {"model__weight_decay__value": 0.1, "model__clip_gradients": True, "model__clip_gradients__global_norm": 1.0}


@pytest.mark.parametrize(
    ("make", "config"),
    [(simple, DECAY), (simple, {"model__mixed_precision": "mixed_float16"}), (towers, {})],
    ids=["decay and clipping", "float16", "two towers"],
)
def test_equals_two_runs_by_hand(make: Callable[..., TowerTrainer], config: dict[str, Any]) -> None:
    def more() -> list[Callback]:
        setter = HyperParamSetterWithFunc("learning_rate", lambda _, rate: rate / 2)
        return [setter.every(steps=2), ExponentialMovingAverage(0.5)]

    first, second = make(**config), make(**config)
    first.train([SetTrainable("backbone", True).at(step=3), *more()], max_steps=6)
    callbacks = more()
    second.train(callbacks, max_steps=3)
    second.keras_layers["backbone"].trainable = True
    second.train(callbacks, max_steps=6)
    assert weights(first) == weights(second)


def both(frozen_at: int) -> list[Callback]:
    return [SetTrainable("backbone", True).at(step=4), SetTrainable("head", False).at(step=frozen_at)]


@pytest.mark.parametrize(("make", "steps"), [(simple, [4, 8]), (towers, [5])])
def test_resumed_at_any_step(make: Callable[..., TowerTrainer], steps: list[int], tmp_path: Path) -> None:
    whole = make()
    whole.train([*both(7), ExponentialMovingAverage(0.9)], max_steps=9)
    for step in steps:
        callbacks: list[Callback] = [*both(7), ExponentialMovingAverage(0.9)]
        make(tmp_path / str(step)).train([*callbacks, ModelSaver().every(steps=1)], max_steps=step)
        resumed = make(tmp_path / str(step))
        resumed.train([*both(7), ExponentialMovingAverage(0.9), ModelSaver()], max_steps=9)
        assert values(resumed) == values(whole)


def asynchronous() -> TowerTrainer:
    return AsyncTrainer(tiny_model(build=build), towers="cpu:2")


HEAD_AT_1: list[Callback] = [SetTrainable("head", False).at(step=1)]
REFUSED: list[tuple[Callable[[], Any], list[Callback], str]] = [
    (simple, [SetTrainable("backbon", True).at(step=1)], "'backbon' .*backbone"),
    (simple, [SetTrainable("head", False)], r"\.at\(step="),
    (simple, both(3), "in the order"),
    (asynchronous, HEAD_AT_1, "AsyncTrainer cannot"),
    (
        lambda: simple(model__trainable_variables__filter_regex="head"),
        [SetTrainable("backbone", True).at(step=1)],
        "model.trainable_variables leaves out backbone/fc/kernel",
    ),
]


def test_errors() -> None:
    trainers: dict[Any, Any] = {}
    for make, callbacks, words in REFUSED:
        trainer = trainers[make] = trainers.get(make) or make()
        with pytest.raises(PrototrainError, match=words) as caught:
            trainer.train(callbacks, max_steps=2)
        assert "\n" not in str(caught.value)
    with pytest.raises(CallbackError, match="say True to train"):
        SetTrainable("head", "False")  # type: ignore[arg-type]


@pytest.mark.parametrize("epochs", [1, 3])  # found at the end of the run, or before the next epoch
def test_layers_frozen_by_hand_during_a_run_are_an_error(epochs: int) -> None:
    class Freeze(Callback):
        def trigger(self) -> None:
            self.trainer.keras_layers["head"].trainable = False

    trainer = simple()
    with pytest.raises(ModelError, match="head/bias, head/kernel has changed during the run"):
        trainer.train([Freeze().every(steps=2)], steps_per_epoch=5, max_epoch=epochs)
    assert trainer.global_step == 5
