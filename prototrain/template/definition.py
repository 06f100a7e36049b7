"""The network and its loss."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from prototrain import ModelDict

from .config import config


def build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """Builds the network for one batch.

    The trainer calls this once for training and once for validation. Create layers where you use them: the first call
    creates their variables, and later calls reuse them.

    Args:
        inputs: a batch of `datasets()`; an exported model has no "labels".
        train_phase: whether the network is for training; layers such as dropout depend on it.

    Returns:
        The tensors by name. The trainer minimizes "loss" and reports all scalars, here "loss" and "accuracy".
    """
    net = ModelDict()  # a dict with attributes; `net.last` is the value that was added last
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
