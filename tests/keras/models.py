"""Keras models and data for several tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

LAYERS = keras.layers
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=(40, 6, 6, 1)).astype(np.float32)
MEANS = IMAGES.mean((1, 2, 3))[:, None]
LABELS = (MEANS[:, 0] > 0).astype(np.int32)
WEIGHTS = RANDOM.uniform(0.5, 2.0, size=40).astype(np.float32)
X = IMAGES[:, 0, :4, 0]
Y = np.eye(2, dtype=np.float32)[(X.sum(1) > 0).astype(int)]


def batches(*parts: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(parts).batch(16)  # the last one is short


def made(make: Callable[[], keras.Model]) -> keras.Model:
    """Create the same model in the same state, as in a new process."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    return make()


def regularized() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            LAYERS.Flatten(),
            LAYERS.Dense(8, activation="relu", kernel_regularizer="l2", kernel_constraint="non_neg", name="hidden"),
            LAYERS.Dropout(0.3, seed=5),
            LAYERS.Dense(2, name="logits"),
        ],
        name="mlp",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


class Doubling(keras.optimizers.SGD):  # type: ignore[misc]
    """Doubles gradients, in the method that `fit` calls."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients([(2.0 * gradient, variable) for gradient, variable in grads_and_vars])


def doubling() -> keras.Model:
    model = regularized()
    model.compile(Doubling(0.1, loss_scale_factor=8.0), model.loss, metrics=["accuracy"])
    return model


def convnet() -> keras.Model:
    image = keras.Input((6, 6, 1))
    hidden = LAYERS.BatchNormalization(name="norm")(LAYERS.Conv2D(4, 3, name="conv")(image))
    hidden = LAYERS.GlobalAveragePooling2D()(LAYERS.Dropout(0.2)(LAYERS.ReLU()(hidden)))
    model = keras.Model(image, LAYERS.Dense(1, activation="sigmoid", name="probability")(hidden), name="convnet")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy", metrics=[keras.metrics.AUC()])
    return model


def two_outputs() -> keras.Model:
    image = keras.Input((6, 6, 1), name="image")
    hidden = LAYERS.Dense(8, activation="tanh", name="hidden")(LAYERS.Flatten()(image))
    outputs = {
        "label": LAYERS.Dense(2, activation="softmax", name="label")(hidden),
        "mean": LAYERS.Dense(1, name="mean")(hidden),
    }
    model = keras.Model({"image": image}, outputs, name="two")
    model.compile(
        "rmsprop",
        loss={"label": "sparse_categorical_crossentropy", "mean": "mse"},
        loss_weights={"label": 1.0, "mean": 0.3},
        metrics={"mean": ["mae"]},
    )
    return model


class Subclassed(keras.Model):  # type: ignore[misc]
    """Adds a loss, and is not built before it is trained."""

    def __init__(self) -> None:
        super().__init__(name="subclassed")
        self.hidden = LAYERS.Dense(8, activation="relu", name="hidden")
        self.out = LAYERS.Dense(1, name="out")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        hidden = self.hidden(tf.reshape(inputs, [-1, 36]))
        self.add_loss(0.01 * tf.reduce_mean(hidden**2))
        return self.out(hidden)


def weighted() -> keras.Model:
    model = Subclassed()
    model.compile(keras.optimizers.AdamW(1e-2, use_ema=True), "mse", metrics=["mae"], weighted_metrics=["mae"])
    return model


class Distance(keras.Model):  # type: ignore[misc]
    """Takes two inputs, has its loss from a layer, and no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = LAYERS.Dense(2)

    def call(self, pair: Any) -> Any:
        one, other = map(self.dense, pair)
        self.add_loss(keras.ops.mean((one - other) ** 2))
        return one


def distance() -> keras.Model:
    model = Distance()
    model.compile("sgd")
    return model


class OwnStep(Subclassed):
    """A `train_step` with two optimizers and a metric, as in a GAN."""

    def compile(self, *arguments: Any, **keywords: Any) -> None:
        super().compile(*arguments, **keywords)
        self.of_hidden = keras.optimizers.SGD(0.05, momentum=0.9)
        self.norm = keras.metrics.Mean(name="norm")
        self.seed = keras.random.SeedGenerator(7)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        noise = keras.random.normal(tf.shape(x), seed=self.seed)
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x + 0.1 * noise, training=True))
        parts = ((self.optimizer, self.out), (self.of_hidden, self.hidden))
        for optimizer, layer in parts:
            gradients = tape.gradient(loss, layer.trainable_weights)
            optimizer.apply_gradients(zip(gradients, layer.trainable_weights, strict=True))
        self.norm.update_state(tf.linalg.global_norm(gradients))
        return {"loss": loss, "norm": self.norm.result()}


def own_step() -> keras.Model:
    model = OwnStep()
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


class CountsHalves(keras.metrics.Metric):  # type: ignore[misc]
    """Returns two numbers by name."""

    def __init__(self) -> None:
        super().__init__(name="two")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(1.0)

    def result(self) -> dict[str, Any]:
        return {"whole": self.count, "half": self.count / 2}


class OwnMetrics(keras.Model):  # type: ignore[misc]
    """Changes one metric, adds a value and leaves out the others."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        return {"loss": found["loss"], "mae": found["mae"] * 100, "mean": keras.ops.mean(y_pred[:, 0])}


def classifier(kind: type[keras.Model] = keras.Model, metrics: Callable[[], list[Any]] = list) -> keras.Model:
    inputs = keras.Input((4,))
    model = kind(inputs, LAYERS.Dense(2, "softmax", name="out")(inputs), name="classifier")
    model.compile("sgd", "categorical_crossentropy", metrics=metrics())
    return model


class Shuffling(keras.utils.PyDataset):  # type: ignore[misc]
    """Reorders and increases its values in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.order, self.generator, self.factor = np.arange(40), np.random.default_rng(3), 1.0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        chosen = self.order[index * 10 : index * 10 + 10]
        return X[chosen] * self.factor, Y[chosen]

    def on_epoch_begin(self) -> None:
        self.factor *= 1.5

    def on_epoch_end(self) -> None:
        self.generator.shuffle(self.order)


def forty() -> Iterator[tuple[Any, Any]]:
    for start in range(0, 40, 10):
        yield X[start : start + 10], Y[start : start + 10]
