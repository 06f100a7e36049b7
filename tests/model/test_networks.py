"""Networks trained by prototrain and by Keras, from the same weights on the same batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import Summaries
from prototrain.trainers.tower import TowerTrainer
from tests.tiny import tiny_model

L = keras.layers
STEPS, BATCH = 5, 8
Network = Callable[[Any, bool], Any]
"""Takes x [batch, 6] (float32, with whole numbers 0..9 in its last three columns); returns [batch, 3]."""
Made = tuple[list[L.Layer], Network]
"""New layers, and the network that calls them."""


def of_model(model: keras.Model) -> Made:
    return [model], lambda x, training: model(x, training=training)


def functional() -> Made:
    given = keras.Input((6,), name="given")
    x = L.Dense(6, "tanh", kernel_regularizer="l2", name="first")(given)
    return of_model(keras.Model(given, L.Dense(3, name="second")(x + given), name="functional"))


def sequential() -> Made:
    model = keras.Sequential(name="stack")
    model.add(L.Dense(5, kernel_constraint="non_neg", use_bias=False, name="wide"))
    model.add(L.BatchNormalization(synchronized=True, name="normal"))
    model.add(L.ReLU())
    model.add(L.Dense(3, name="last"))
    return of_model(model)


def nested() -> Made:
    fixed = L.Dense(5, "tanh", trainable=False, name="fixed")
    inner = keras.Sequential([keras.Input((6,)), fixed, L.Dense(4, name="free")], name="inner")
    given = keras.Input((6,))
    middle = keras.Model(given, L.Dense(4, name="after")(inner(given)), name="middle")
    return of_model(keras.Sequential([middle, L.Dense(3, name="end")], name="outer"))


class Block(L.Layer):  # type: ignore[misc]
    """A layer with child layers, an added loss, and a metric of its input."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.inner = L.Dense(4, "relu", name="inner")
        self.outer = L.Dense(4, kernel_regularizer="l1", name="outer")
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x: Any) -> Any:
        self.mean.update_state(x)
        hidden = self.inner(x)
        self.add_loss(0.1 * tf.reduce_mean(hidden**2))
        return self.outer(hidden)


def subclassed() -> Made:
    block, top = Block(name="block"), L.Dense(3, name="top")
    return [block, top], lambda x, training: top(block(x))


def used_twice() -> Made:
    layer, out = L.Dense(6, "tanh", activity_regularizer="l2", name="again"), L.Dense(3, name="after_again")
    return [layer, out], lambda x, training: out(layer(layer(x)))


def recurrent() -> Made:
    words, lstm = L.Embedding(10, 4, mask_zero=True, name="words"), L.LSTM(4, name="lstm")
    read = L.Dense(3, name="read")
    return [words, lstm, read], lambda x, training: read(lstm(words(tf.cast(x[:, 3:], tf.int32)), training=training))


def dropout() -> Made:
    noise, drop = L.GaussianNoise(0.1, seed=4, name="noise"), L.Dropout(0.3, seed=5, name="drop")
    hidden, out = L.Dense(6, "relu", name="hidden"), L.Dense(3, name="out")
    layers = [noise, drop, hidden, out]
    return layers, lambda x, training: out(drop(hidden(noise(x, training=training)), training=training))


def together(makes: list[Callable[[], Made]]) -> Made:
    """The mean of several networks, so that one run tests all of them."""
    made = [make() for make in makes]
    layers = [layer for layers, _ in made for layer in layers]
    return layers, lambda x, training: sum(network(x, training) for _, network in made) / len(made)


GROUPS: dict[str, list[Callable[[], Made]]] = {
    "models": [functional, sequential, nested],
    "layers": [subclassed, used_twice],
    "recurrent": [recurrent],
    "dropout": [dropout],
}


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

    def __init__(self, made: Made) -> None:
        super().__init__(name="whole")
        layers, self.network = made
        self.network(tf.constant(arrays()[0][:BATCH]), False)
        self.parts = [layer for layer in layers if layer.weights]

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

    model = tiny_model(build=build, datasets=datasets, model__optimizer__method=keras.optimizers.Adam)
    return SimpleTrainer(model) if towers == 1 else SyncReplicatedTrainer(model, f"cpu:{towers}")


@pytest.mark.parametrize("group", GROUPS)
def test_training_equals_keras(group: str) -> None:
    """With layers made inline, on one tower, and with layers made before, on two."""
    makes = GROUPS[group]
    trainers = [make_trainer(lambda x, training: together(makes)[1](x, training), 1)]
    if group not in ("dropout", "recurrent"):  # each tower draws its own numbers; a slow one
        trainers.append(make_trainer(together(makes)[1], 2))
    whole = Whole(together(makes))
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
