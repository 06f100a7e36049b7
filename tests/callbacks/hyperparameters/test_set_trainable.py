from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import AsyncTrainer, Callback, KerasTrainer, ModelDict, SyncReplicatedTrainer
from prototrain.callbacks import (
    ExponentialMovingAverage,
    HyperParamSetterWithFunc,
    ModelSaver,
    SetTrainable,
)
from prototrain.errors import CallbackError, PrototrainError
from prototrain.trainers.tower import SimpleTrainer, TowerTrainer
from tests.tiny import CountingTrainer, tiny_model


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


def ordered(batch_size: int = 8) -> dict[str, tf.data.Dataset]:
    points = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
    arrays = {"x": points, "y": (points[:, 0] > points[:, 1]).astype(np.int32)}
    return {"trn": tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)}


def simple(experiment: Path | None = None, **config: Any) -> SimpleTrainer:
    return SimpleTrainer(tiny_model(build=build, datasets=ordered, **config), experiment=experiment)


def towers(experiment: Path | None = None, **config: Any) -> SyncReplicatedTrainer:
    return SyncReplicatedTrainer(
        tiny_model(build=build, datasets=ordered, **config), towers="cpu:2", experiment=experiment
    )


def state(trainer: TowerTrainer) -> dict[str, Any]:
    return {name: np.array(tf.convert_to_tensor(value)) for name, value in trainer.variables.items()}


def assert_same(one: TowerTrainer, other: TowerTrainer) -> None:
    expected = state(other)
    for name, value in state(one).items():
        np.testing.assert_array_equal(value, expected[name], name)


class Changed(Callback):
    """Notes at each step which variables it has changed."""

    chief_only = False

    def before_train(self) -> None:
        self.by_step: dict[int, set[str]] = {}
        self._last = state(self.trainer)

    def trigger_step(self) -> None:
        now = state(self.trainer)
        self.by_step[self.trainer.global_step] = {name for name in now if np.any(now[name] != self._last[name])}
        self._last = now


EARLY = {"scale", "head/bias"}
HEAD = {"head/kernel", "head/bias"}
DENSE = {"backbone/fc/kernel", "backbone/fc/bias"}
NORM = {"backbone/bn/" + name for name in ("gamma", "beta", "moving_mean", "moving_variance")}
ADDED = {
    "a layer": ("backbone", DENSE | NORM),
    "a layer inside": ("backbone/bn", NORM),
    "some variables": ("backbone/fc/.*", DENSE),
    "one variable": (".*fc/kernel", {"backbone/fc/kernel"}),
}


@pytest.mark.parametrize("case", ADDED)
def test_unfreezing(case: str) -> None:
    regex, added = ADDED[case]
    trainer, changed = simple(), Changed()
    trainer.train([SetTrainable(regex, True).at(step=3), changed], max_steps=5)
    assert changed.by_step == {step: HEAD | {"scale"} | (added if step > 3 else set()) for step in range(1, 6)}


@pytest.mark.parametrize("when", [{"step": 5}, {"epoch": 1}])
def test_freezing(when: dict[str, int]) -> None:
    trainer, changed = simple(), Changed()
    trainer.train([SetTrainable("scale|head/bias", False).at(**when), changed], max_steps=7)
    assert changed.by_step == {step: {"head/kernel"} | (EARLY if step < 6 else set()) for step in range(1, 8)}


def by_hand(trainer: TowerTrainer, more: list[Callback]) -> None:
    trainer.train(more, max_steps=3)
    trainer.keras_layers["backbone"].trainable = True
    trainer.train(more, max_steps=6)


MORE: dict[str, tuple[Callable[..., TowerTrainer], dict[str, Any], Callable[[], list[Callback]]]] = {
    "adam": (simple, {}, list),
    "decay and clipping": (
        simple,
        {"model__weight_decay__value": 0.1, "model__clip_gradients": True, "model__clip_gradients__global_norm": 1.0},
        list,
    ),
    "float16": (simple, {"model__mixed_precision": "mixed_float16"}, list),
    "two towers": (towers, {}, list),
    "a setter": (
        simple,
        {},
        lambda: [HyperParamSetterWithFunc("learning_rate", lambda _, rate: rate / 2).every(steps=2)],
    ),
    "averages": (simple, {}, lambda: [ExponentialMovingAverage(0.5)]),
}


@pytest.mark.parametrize("case", MORE)
def test_as_two_runs(case: str) -> None:
    make, config, more = MORE[case]
    first, second = make(**config), make(**config)
    first.train([SetTrainable("backbone", True).at(step=3), *more()], max_steps=6)
    by_hand(second, more())
    assert_same(first, second)


def test_several() -> None:
    trainer, changed = simple(), Changed()
    callbacks = [SetTrainable("backbone/fc", True).at(step=0), SetTrainable("head|scale", False).at(step=1)]
    trainer.train([*callbacks, SetTrainable(".*/bias", False).at(step=2), changed], max_steps=3)
    assert changed.by_step == {1: DENSE | HEAD | {"scale"}, 2: DENSE, 3: {"backbone/fc/kernel"}}


def both(frozen_at: int) -> list[Callback]:
    return [SetTrainable("backbone", True).at(step=4), SetTrainable("head", False).at(step=frozen_at)]


@pytest.mark.parametrize(("make", "steps"), [(simple, [3, 4, 8]), (towers, [5])])
def test_resumed_at_any_step(make: Callable[..., TowerTrainer], steps: list[int], tmp_path: Path) -> None:
    whole = make()
    whole.train([*both(7), ExponentialMovingAverage(0.9)], max_steps=9)
    for step in steps:
        callbacks: list[Callback] = [*both(7), ExponentialMovingAverage(0.9)]
        make(tmp_path / str(step)).train([*callbacks, ModelSaver().every(steps=1)], max_steps=step)
        resumed = make(tmp_path / str(step))
        resumed.train([*both(7), ExponentialMovingAverage(0.9), ModelSaver()], max_steps=9)
        assert_same(resumed, whole)
        for name, value in resumed.state.items():
            if "optimizer/" in name or "Average" in name:
                np.testing.assert_array_equal(tf.convert_to_tensor(value), tf.convert_to_tensor(whole.state[name]))


def test_a_trainer_that_trains_further() -> None:
    first, second = simple(), simple()
    for steps in (3, 6, 9):
        second.train(both(5), max_steps=steps)
    first.train(both(5), max_steps=9)
    assert_same(first, second)
    assert not second.keras_layers["backbone"].trainable  # as before the run


def test_the_others_do_not_change() -> None:
    """A variable that no loss depends on is frozen: nothing else may differ."""
    first, second = simple(), simple()
    first.train([], max_steps=6)
    second.train([SetTrainable("backbone", False).at(step=3)], max_steps=6)
    assert_same(first, second)


class Own(SimpleTrainer):
    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        variables = list(self.trainable.values())
        with tf.GradientTape() as tape:
            loss = self.build(inputs, True)["loss"]
        self.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)), loss=loss)
        return {"loss": loss}


class InPython(SimpleTrainer):
    def run_step(self) -> Any:
        return super().run_step()


@pytest.mark.parametrize("kind", [Own, InPython])
def test_own_steps(kind: type[SimpleTrainer]) -> None:
    trainer, changed = kind(tiny_model(build=build, datasets=ordered)), Changed()
    trainer.train([SetTrainable("backbone", True).at(step=1), changed], max_steps=2)
    assert changed.by_step == {1: HEAD | {"scale"}, 2: HEAD | {"scale"} | DENSE | NORM}


def of_keras() -> KerasTrainer:
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2, name="head")])
    model.compile("sgd", "mse")
    return KerasTrainer(model, (np.zeros([8, 4], "float32"), np.zeros([8, 2], "float32")), batch_size=4)


def asynchronous() -> TowerTrainer:
    return AsyncTrainer(tiny_model(build=build, datasets=ordered), towers="cpu:2")


REFUSED: dict[str, tuple[Callable[[], Any], Callable[[], list[Callback]], str]] = {
    "no such name": (simple, lambda: [SetTrainable("backbon", True).at(step=1)], "'backbon' .*backbone"),
    "nothing to train": (simple, lambda: [SetTrainable(".*moving_mean", True).at(step=1)], "nothing that could be"),
    "no expression": (simple, lambda: [SetTrainable("(", True).at(step=1)], "not a regular expression"),
    "no time": (simple, lambda: [SetTrainable("head", False)], r"\.at\(step="),
    "order": (simple, lambda: both(3), "in the order"),
    "keras": (of_keras, lambda: [SetTrainable("head", False).at(step=1)], "KerasTrainer cannot"),
    "asynchronous": (asynchronous, lambda: [SetTrainable("head", False).at(step=1)], "AsyncTrainer cannot"),
    "no layers": (CountingTrainer, lambda: [SetTrainable("head", False).at(step=1)], "CountingTrainer has no layers"),
    "left out": (
        lambda: simple(model__trainable_variables__filter_regex="head"),
        lambda: [SetTrainable("backbone", True).at(step=1)],
        "model.trainable_variables leaves out backbone/fc/kernel",
    ),
    "all": (simple, lambda: [SetTrainable(".*", False).at(step=1)], "the model has none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make, callbacks, words = REFUSED[case]
    with pytest.raises(PrototrainError, match=words) as caught:
        make().train(callbacks(), max_steps=2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [{}, {"step": 1, "epoch": 1}, {"step": -1}, {"epoch": 1.5}])
def test_wrong_times(given: dict[str, Any]) -> None:
    with pytest.raises(CallbackError, match=r"at\(step=N\)"):
        SetTrainable("head", True).at(**given)
