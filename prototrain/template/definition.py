"""The network."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from prototrain import ModelDict

from .config import config


def build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """Builds the network for one batch.

    Called once for training and once for validation. Layers are made where they are used: the first call creates their
    variables, and every later call is given the same ones again.

    Args:
        inputs: a batch as `datasets()` gives it; an exported model gets no "labels".
        train_phase: whether this is for training, for layers such as dropout.

    Returns:
        Every tensor by name. The trainer minimises "loss" and reports every scalar, here "loss" and "accuracy".
    """
    net = ModelDict()  # a dict with attributes; `net.last` is what was put in most recently
    net.points = inputs["points"]
    for i, units in enumerate(config["model.hidden_units"]):
        net[f"fc{i}"] = keras.layers.Dense(units, activation="relu", name=f"fc{i}")(net.last)
    net.logits = keras.layers.Dense(2, name="logits")(net.last)
    net.probabilities = tf.nn.softmax(net.logits)

    if "labels" in inputs:
        labels = inputs["labels"]
        net.loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=net.logits))
        predictions = tf.argmax(net.logits, axis=-1, output_type=labels.dtype)
        net.accuracy = tf.reduce_mean(tf.cast(predictions == labels, tf.float32))
    return net
