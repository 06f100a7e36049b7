"""Networks whose layers are attributes, and the same networks with layers that are made where they are used.

All take ``x`` [batch, 6] (float32, with whole numbers 0..9 in its last three columns) and return [batch, 3].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

L = keras.layers
Network = Callable[[Any, bool], Any]


def inline(make: Callable[[], Network]) -> Network:
    """A network that makes all its layers in each call."""
    return lambda x, training: make()(x, training)


class Kept:
    """A network that has a whole model as attribute."""

    def __init__(self, make: Callable[[], keras.Model]) -> None:
        self.model = make()

    def __call__(self, x: Any, training: bool) -> Any:
        return self.model(x, training=training)


def make_functional() -> keras.Model:
    given = keras.Input((6,), name="given")
    x = L.Dense(6, "tanh", kernel_regularizer="l2", name="first")(given)
    x = L.Dense(3, name="second")(x + given)
    return keras.Model(given, x, name="functional")


def make_sequential() -> keras.Model:
    model = keras.Sequential(name="stack")
    model.add(L.Dense(5, kernel_constraint="non_neg", use_bias=False, name="wide"))
    model.add(L.BatchNormalization(synchronized=True, name="normal"))
    model.add(L.ReLU())
    model.add(L.Dense(3, name="last"))
    return model


def make_nested() -> keras.Model:
    fixed = L.Dense(5, "tanh", trainable=False, name="fixed")
    inner = keras.Sequential([keras.Input((6,)), fixed, L.Dense(4, name="free")], name="inner")
    given = keras.Input((6,))
    middle = keras.Model(given, L.Dense(4, name="after")(inner(given)), name="middle")
    return keras.Sequential([middle, L.Dense(3, name="end")], name="outer")


class Block(L.Layer):  # type: ignore[misc]
    """A layer with child layers and an added loss."""

    def __init__(self, units: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.inner = L.Dense(units, "relu", name="inner")
        self.outer = L.Dense(units, kernel_regularizer="l1", name="outer")

    def call(self, x: Any) -> Any:
        hidden = self.inner(x)
        self.add_loss(0.1 * tf.reduce_mean(hidden**2))
        return self.outer(hidden)


class Subclassed:
    def __init__(self) -> None:
        self.block, self.top = Block(4, name="block"), L.Dense(3, name="top")

    def __call__(self, x: Any, training: bool) -> Any:
        return self.top(self.block(x))


class Shared:
    """A layer that is used twice."""

    def __init__(self) -> None:
        self.layer = L.Dense(6, "tanh", activity_regularizer="l2", name="again")
        self.out = L.Dense(3, name="after_again")

    def __call__(self, x: Any, training: bool) -> Any:
        return self.out(self.layer(self.layer(x)))


class Recurrent:
    def __init__(self) -> None:
        self.words = L.Embedding(10, 4, mask_zero=True, name="words")
        self.lstm, self.read = L.LSTM(4, name="lstm"), L.Dense(3, name="read")

    def __call__(self, x: Any, training: bool) -> Any:
        return self.read(self.lstm(self.words(tf.cast(x[:, 3:], tf.int32)), training=training))


class Measured(L.Layer):  # type: ignore[misc]
    """Returns its input, and averages it in a metric."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x: Any) -> Any:
        self.mean.update_state(x)
        return x


class MetricLayers:
    def __init__(self) -> None:
        self.hidden, self.seen = L.Dense(4, "relu", name="hidden_seen"), Measured(name="seen")
        self.out = L.Dense(3, name="of_seen")

    def __call__(self, x: Any, training: bool) -> Any:
        return self.out(self.seen(self.hidden(x)))


class Dropout:
    def __init__(self) -> None:
        self.noise, self.drop = L.GaussianNoise(0.1, seed=4, name="noise"), L.Dropout(0.3, seed=5, name="drop")
        self.hidden, self.out = L.Dense(6, "relu", name="hidden"), L.Dense(3, name="out")

    def __call__(self, x: Any, training: bool) -> Any:
        x = self.hidden(self.noise(x, training=training))
        return self.out(self.drop(x, training=training))


class Together:
    """The mean of several networks, so that one run tests all of them."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = networks

    def __call__(self, x: Any, training: bool) -> Any:
        return sum(network(x, training) for network in self.networks) / len(self.networks)


GROUPS: dict[str, list[Callable[[], Network]]] = {
    "models": [partial(Kept, make) for make in (make_functional, make_sequential, make_nested)],
    "layers": [Subclassed, Shared, MetricLayers],
    "recurrent": [Recurrent],
    "dropout": [Dropout],
}
