"""The benchmarks' workloads: the same data and layers for prototrain and its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """A network and its data, trained with Adam and softmax cross entropy over ten classes.

    Attributes:
        title: the name in tables.
        batch: examples per step.
        steps: steps per measurement.
        shape: the shape of one example.
        dtype: the dtype of one example.
        examples: makes a dataset of single examples; its argument arranges an example and a label as one element.
        logits: the network: a batch of examples and `training` to logits [batch, 10].
    """

    title: str
    batch: int
    steps: int
    shape: tuple[int, ...]
    dtype: str
    examples: Callable[[Callable[[Any, Any], Any]], tf.data.Dataset]
    logits: Callable[[Any, bool], Any]

    def batches(self, structure: Callable[[Any, Any], Any]) -> tf.data.Dataset:
        """Return an endless dataset of batches; `structure` arranges an example and a label as one element."""
        examples = self.examples(structure).repeat().batch(self.batch, drop_remainder=True)
        return examples.prefetch(tf.data.AUTOTUNE)


def pair(x: Any, y: Any) -> tuple[Any, Any]:
    """Arrange an element for Keras."""
    return x, y


def by_name(x: Any, y: Any) -> dict[str, Any]:
    """Arrange an element for prototrain."""
    return {"x": x, "y": y}


def _arrays(x: np.ndarray[Any, Any]) -> Callable[[Callable[[Any, Any], Any]], tf.data.Dataset]:
    y = np.random.default_rng(1).integers(0, CLASSES, len(x)).astype(np.int32)

    def examples(structure: Callable[[Any, Any], Any]) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(structure(x, y)).shuffle(len(x), seed=1)

    return examples


def _normal(count: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)


def _tokens(count: int, length: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 1000, (count, length)).astype(np.int32)


def _mlp(x: Any, training: bool) -> Any:
    x = keras.layers.Dense(128, activation="relu", name="fc0")(x)
    x = keras.layers.Dense(128, activation="relu", name="fc1")(x)
    return keras.layers.Dense(CLASSES, name="logits")(x)


def _text(x: Any, training: bool) -> Any:
    x = keras.layers.Embedding(1000, 32, name="embedding")(x)
    x = keras.layers.LSTM(32, name="lstm")(x)
    return keras.layers.Dense(CLASSES, name="logits")(x)


def _resnet18(x: Any, training: bool) -> Any:
    """ResNet-18 for images of 32 x 32: no stride and no pooling in the stem, 20 convolutions."""

    def conv(x: Any, name: str, filters: int, size: int = 3, strides: int = 1) -> Any:
        x = keras.layers.Conv2D(filters, size, strides, padding="same", use_bias=False, name=f"{name}_conv")(x)
        return keras.layers.BatchNormalization(name=f"{name}_bn")(x, training=training)

    x = keras.layers.ReLU(name="stem_relu")(conv(x, "stem", 64))
    for stage, filters in enumerate((64, 128, 256, 512)):
        for block in range(2):
            name, strides = f"block{stage}_{block}", 2 if stage and not block else 1
            inner = keras.layers.ReLU(name=f"{name}_relu1")(conv(x, f"{name}_1", filters, 3, strides))
            inner = conv(inner, f"{name}_2", filters)
            x = x if strides == 1 else conv(x, f"{name}_short", filters, 1, strides)
            x = keras.layers.ReLU(name=f"{name}_relu2")(keras.layers.Add(name=f"{name}_add")([x, inner]))
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.layers.Dense(CLASSES, name="logits")(x)


def _transformer(x: Any, training: bool) -> Any:
    """An encoder of four layers, each with attention of two heads and two dense layers."""
    width = 64
    x = keras.layers.Embedding(1000, width, name="embedding")(x)
    for number in range(4):
        name = f"layer{number}"
        inner = keras.layers.LayerNormalization(name=f"{name}_norm1")(x)
        inner = keras.layers.MultiHeadAttention(2, width // 2, name=f"{name}_attention")(inner, inner)
        x = keras.layers.Add(name=f"{name}_add1")([x, inner])
        inner = keras.layers.LayerNormalization(name=f"{name}_norm2")(x)
        inner = keras.layers.Dense(2 * width, activation="gelu", name=f"{name}_dense1")(inner)
        inner = keras.layers.Dense(width, name=f"{name}_dense2")(inner)
        x = keras.layers.Add(name=f"{name}_add2")([x, inner])
    x = keras.layers.GlobalAveragePooling1D(name="pool")(x)
    return keras.layers.Dense(CLASSES, name="logits")(x)


WORKLOADS = {  # benchmarks/peers has the same layers for other libraries
    "mlp": Workload("MLP 64-128-128-10", 32, 1000, (64,), "float32", _arrays(_normal(1792, 64)), _mlp),
    "resnet18": Workload(
        "ResNet-18, 32x32 images", 8, 10, (32, 32, 3), "float32", _arrays(_normal(512, 32, 32, 3)), _resnet18
    ),
    "transformer": Workload(
        "transformer of 4 layers, 32 tokens", 32, 50, (32,), "int32", _arrays(_tokens(1024, 32)), _transformer
    ),
    "lstm": Workload("embedding and LSTM, 24 tokens", 32, 100, (24,), "int32", _arrays(_tokens(1024, 24)), _text),
}
