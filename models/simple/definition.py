"""The network: a multilayer perceptron with batch normalization."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from prototrain.model import ModelDict

from .config import config


def build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """Builds the network for one batch.

    The trainer calls this for training and for validation. Layers are created where they are used: the first call
    creates them, and later calls reuse them.

    Args:
        inputs: a batch of `datasets()`; an exported model gets no "labels".
        train_phase: whether the model is built for training. Batch normalization then uses the statistics of the
            batch, and the collected statistics otherwise.

    Returns:
        All tensors by name. The trainer minimizes "loss" and reports all scalars, here "loss" and "accuracy".
    """
    # A ModelDict is a dict with attributes; `net.last` is what was put in most recently.
    net = ModelDict()
    net.examples = inputs["examples"]

    for i, units in enumerate(config["model.hidden_units"]):
        # No bias: the normalization that follows takes the mean away and adds an offset.
        net[f"fc{i}"] = keras.layers.Dense(units, use_bias=False, name=f"fc{i}")(net.last)
        net[f"bn{i}"] = keras.layers.BatchNormalization(momentum=0.9, name=f"bn{i}")(net.last, training=train_phase)
        net[f"relu{i}"] = tf.nn.relu(net.last)

    net.logits = keras.layers.Dense(10, name="logits")(net.last)
    net.probabilities = tf.nn.softmax(net.logits)
    net.predictions = tf.argmax(net.logits, axis=-1, output_type=tf.int32)

    if "labels" in inputs:
        labels = inputs["labels"]
        net.loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=net.logits))
        net.accuracy = tf.reduce_mean(tf.cast(net.predictions == labels, tf.float32))
    return net
