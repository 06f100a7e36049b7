"""Networks trained by prototrain and by Keras, from the same weights on the same batches."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import Summaries
from prototrain.trainers.tower import TowerTrainer
from tests.model.networks import GROUPS, Network, Together, inline
from tests.tiny import tiny_model

L = keras.layers
STEPS, BATCH = 5, 8


@functools.cache
def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    x = np.concatenate([rng.normal(size=(STEPS * BATCH, 3)), rng.integers(0, 10, (STEPS * BATCH, 3))], 1)
    return x.astype(np.float32), rng.normal(size=(STEPS * BATCH, 3)).astype(np.float32)


def datasets() -> dict[str, tf.data.Dataset]:
    x, y = arrays()
    return {"trn": tf.data.Dataset.from_tensor_slices({"x": x, "y": y}).batch(BATCH)}


class Whole(keras.Model):  # type: ignore[misc]
    """A network as a Keras model."""

    def __init__(self, network: Together) -> None:
        super().__init__(name="whole")
        self.network = network
        network(tf.constant(arrays()[0][:BATCH]), False)
        made = [part for one in network.networks for part in vars(one).values()]
        self.parts = [part for part in made if isinstance(part, L.Layer) and part.weights]

    def call(self, x: Any, training: bool = False) -> Any:
        return self.network(x, training)


class DenseAdam(keras.optimizers.Adam):  # type: ignore[misc]
    """Adam that sums repeated rows of sparse gradients, which Keras applies one after the other."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply([tf.convert_to_tensor(gradient) for gradient in grads], trainable_variables)


def train_in_keras(whole: keras.Model) -> list[float]:
    whole.compile(DenseAdam(0.01), "mse")
    losses = []
    for k in range(STEPS):
        batch = slice(k * BATCH, (k + 1) * BATCH)
        whole.reset_metrics()
        logs = whole.train_on_batch(arrays()[0][batch], arrays()[1][batch], return_dict=True)
        losses.append(float(logs["loss"]))
    return losses


def make_trainer(network: Network, towers: int) -> TowerTrainer:
    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        outputs = network(inputs["x"], train_phase)
        return {"outputs": outputs, "loss": tf.reduce_mean((outputs - inputs["y"]) ** 2)}

    adam = keras.optimizers.Adam
    model = tiny_model(build=build, datasets=datasets, model__optimizer__method=adam)
    devices = [f"CPU:{k}" for k in range(towers)]
    return SimpleTrainer(model) if towers == 1 else SyncReplicatedTrainer(model, devices)


@pytest.mark.parametrize("group", GROUPS)
def test_training_equals_keras(group: str) -> None:
    """With layers made inline, on one tower, and with layers made before, on two."""
    makes = GROUPS[group]
    trainers = [make_trainer(Together([inline(make) for make in makes]), 1)]
    if group not in ("dropout", "recurrent"):  # each tower draws its own numbers; a slow one
        trainers.append(make_trainer(Together([make() for make in makes]), 2))
    whole = Whole(Together([make() for make in makes]))
    paired = [
        [pair for part in whole.parts for pair in zip(one.keras_layers[part.name].weights, part.weights, strict=True)]
        for one in trainers
    ]
    for mine, theirs in paired[0]:
        theirs.assign(tf.convert_to_tensor(mine))
    for trainer, pairs in zip(trainers, paired, strict=True):
        for mine, theirs in pairs:
            mine.value.assign(tf.convert_to_tensor(theirs))
        trained = {id(mine.value) for mine, theirs in pairs if any(theirs is v for v in whole.trainable_variables)}
        assert {id(variable) for variable in trainer.trainable.values()} == trained

    expected = train_in_keras(whole)
    for trainer, pairs in zip(trainers, paired, strict=True):
        trainer.train([Summaries().every(steps=1)], max_steps=STEPS)
        history = trainer.monitors.history
        losses = [value for _, value in history("trn/loss_total") or history("trn/loss")]  # not all have added losses
        np.testing.assert_allclose(losses, expected, rtol=2e-4, atol=1e-6)
        for mine, theirs in pairs:
            value = tf.convert_to_tensor(mine).numpy()
            np.testing.assert_allclose(value, theirs.numpy(), rtol=1e-3, atol=5e-5, err_msg=mine.path)
