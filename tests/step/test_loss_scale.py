from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import ModelDict, SimpleTrainer
from prototrain.callbacks import ProcessTensors, SaveOnExit, StopOnNaN
from prototrain.errors import ConfigError, NonFiniteError
from prototrain.step.nonfinite import LossScale
from prototrain.trainers.replicated import SyncReplicatedTrainer
from prototrain.trainers.tower import TowerTrainer
from tests.tiny import classifier, tiny_model, weights
from tests.trainers.test_replicated import embedding_build, poisoned


def dense_build(inputs: Any, train_phase: bool) -> ModelDict:
    hidden = keras.layers.Dense(6, activation="relu", name="fc0")(inputs["x"])
    logits = keras.layers.Dense(2, dtype="float32", name="logits")
    net = classifier(lambda x, train_phase: logits(hidden))(inputs, train_phase)
    net.update(fc0=hidden, examples=tf.size(inputs["y"]))
    return net


def make(towers: int, experiment: Path | None = None, **keywords: Any) -> TowerTrainer:
    model = tiny_model(**{"build": dense_build, "model__weight_decay__value": 0.1, **keywords})
    return SimpleTrainer(model, experiment=experiment) if towers == 1 else SyncReplicatedTrainer(model, towers)


@pytest.mark.parametrize(("towers", "count", "build"), [(2, 2, dense_build), (1, 2, embedding_build)])
def test_micro_batches_give_the_same_step(towers: int, count: int, build: Any) -> None:
    plain, divided = make(1, build=build), make(towers, build=build, model__accumulate_steps=count)
    for trainer in (plain, divided):
        trainer.train([StopOnNaN()], max_steps=6)
    assert divided.outputs["loss_total"] == pytest.approx(plain.outputs["loss_total"], rel=1e-4)
    for name, value in weights(plain).items():
        np.testing.assert_allclose(weights(divided)[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
    if build is dense_build:
        assert divided.outputs["examples"] == 8 / towers / count
        with pytest.raises(ConfigError, match="2 towers of 3 micro-batches; 12 would"):
            make(2, model__accumulate_steps=3)


@pytest.mark.parametrize(("policy", "towers"), [("mixed_bfloat16", 1), ("mixed_float16", 2)])
def test_16_bits_are_close_to_32_bits(towers: int, policy: str) -> None:
    seen = []

    def build(inputs: Any, train_phase: bool) -> ModelDict:
        net = dense_build(inputs, train_phase)
        seen.append((net.fc0.dtype.name, net.logits.dtype.name))
        return net

    plain, mixed = make(1), make(towers, build=build, model__mixed_precision=policy)
    for trainer in (plain, mixed):
        trainer.train([StopOnNaN()], max_steps=20)
    assert set(seen) == {(policy.removeprefix("mixed_"), "float32")}
    assert all(variable.dtype == tf.float32 for variable in mixed.variables.values())
    assert mixed.outputs["loss"] == pytest.approx(plain.outputs["loss"], rel=0.05)
    assert ("loss_scale" in mixed.outputs) == (policy == "mixed_float16")
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(("checked", "towers"), [(False, 1), (True, 2)])
def test_overflow_skips_the_update_and_lowers_the_scale(towers: int, checked: bool) -> None:
    trainer = make(towers, model__mixed_precision="mixed_float16")
    assert trainer.loss_scale is not None
    trainer.loss_scale.scale.assign(2.0**40)
    before = weights(trainer)
    trainer.train([StopOnNaN()] if checked else [], max_steps=3)
    after = weights(trainer)
    assert float(trainer.loss_scale.scale) == 2.0**37
    assert all((before[name] == after[name]).all() for name in before)
    trainer.train([StopOnNaN()] if checked else [], max_steps=40)
    assert 1 < float(trainer.loss_scale.scale) < 2.0**30
    assert any((before[name] != weights(trainer)[name]).any() for name in before)


@pytest.mark.parametrize(("towers", "watching"), [(2, []), (1, [ProcessTensors(["logits"], lambda _: None)])])
def test_non_finite_loss_ends_the_run(towers: int, watching: list[Any]) -> None:
    trainer = make(towers, model__mixed_precision="mixed_float16", datasets=poisoned(3, 6))
    with pytest.raises(NonFiniteError, match="in step 3"):
        trainer.train([StopOnNaN(), *(one.every(steps=3) for one in watching)], max_steps=5)
    assert trainer.loss_scale is not None
    assert int(trainer.loss_scale.good_steps) == 2 and float(trainer.loss_scale.scale) == 2.0**15


def test_scale_is_saved_and_grows(experiment: Path) -> None:
    for steps in (3, 5):
        trainer = make(1, experiment=experiment, model__mixed_precision="mixed_float16")
        trainer.train([SaveOnExit()], max_steps=steps)
    assert trainer.loss_scale is not None and int(trainer.loss_scale.good_steps) == 5
    scale = LossScale()
    scale.good_steps.assign(1999)
    scale.adjust(tf.constant(True), tf.constant(True))
    assert (float(scale.scale), int(scale.good_steps)) == (2.0**16, 0)
    for _ in range(30):
        scale.adjust(tf.constant(False), tf.constant(True))
    assert float(scale.scale) == 1.0
    assert not scale.is_overflow(tf.constant(0.5))
