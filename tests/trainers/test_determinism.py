"""Runs under `tf.config.experimental.enable_op_determinism()`: what has no deterministic form fails there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain import AsyncTrainer, KerasTrainer, SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import LearningRate, SaveOnExit, StopOnNaN, Summaries, Validation
from tests.tiny import PressesCtrlC, tiny_arrays, tiny_build, tiny_model, values

TOWERS = ["CPU:0", "CPU:1"]


@pytest.fixture
def deterministic() -> Iterator[None]:
    from tensorflow.python.framework.config import disable_op_determinism

    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()


def with_rows(inputs: Any, train_phase: bool) -> Any:
    """A model with a sparse gradient and with summaries."""
    words = tf.cast(tf.abs(inputs["x"]) * 10, tf.int32) % 7
    rows = keras.layers.Embedding(7, 3, name="embedding")(words)
    tf.summary.histogram("rows", rows)
    return tiny_build({**inputs, "x": tf.reshape(rows, [-1, 12])}, train_phase)


def simple(experiment: Path) -> SimpleTrainer:
    config: dict[str, Any] = {"model__clip_gradients__global_norm": 1.0, "model__accumulate_steps": 2}
    return SimpleTrainer(tiny_model(build=with_rows, **config), experiment=experiment)


def in_16_bits(experiment: Path) -> SimpleTrainer:
    return SimpleTrainer(tiny_model(model__mixed_precision="mixed_float16"), experiment=experiment)


def replicated(experiment: Path) -> SyncReplicatedTrainer:
    return SyncReplicatedTrainer(tiny_model(), towers=TOWERS, experiment=experiment)


def of_keras(experiment: Path) -> KerasTrainer:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(2)
    layers = [keras.Input([4]), keras.layers.Dense(5), keras.layers.Dropout(0.2, seed=3), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse", metrics=["mae"])
    data = tiny_arrays()["x"], tiny_arrays()["y"]
    return KerasTrainer(model, data, validation=data, batch_size=8, experiment=experiment)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("make", [simple, in_16_bits, replicated, of_keras], ids=lambda make: make.__name__)
def test_a_run_trains_and_resumes_exactly(make: Callable[[Path], Any], tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        watching = [Validation().every(steps=5), Summaries().every(steps=3)]
        return [LearningRate(lambda step: 0.01), *watching, StopOnNaN(), SaveOnExit()]

    straight = make(tmp_path / "straight")
    straight.train(callbacks(), max_steps=12)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "stopped").train([*callbacks(), PressesCtrlC(7)], max_steps=12)
    resumed = make(tmp_path / "stopped")
    resumed.train(callbacks(), max_steps=12)
    assert resumed.run.resume_line().startswith("resumed at step 7")
    assert values(resumed) == values(straight) != {}


@pytest.mark.usefixtures("deterministic")
def test_towers_at_their_own_pace_train() -> None:
    trainer = AsyncTrainer(tiny_model(), towers=TOWERS)
    trainer.train([Validation().every(steps=10)], max_steps=20)
    assert trainer.global_step == 20
