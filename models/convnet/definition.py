"""The network of `model.layers`, and its loss."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from prototrain.model import ModelDict

from .config import config
from .layers import read_layers


def build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """Builds the network for one batch.

    Args:
        inputs: "images", float32 [batch, height, width, channels] in 0..1, and "labels", int32 [batch], which an
            exported model does not get.
        train_phase: whether the model is built for training.

    Returns:
        Every layer's output under its name ("conv0", "pool0", ..., "logits"), and what follows from the logits.

    Raises:
        ConfigError: an entry of `model.layers` is wrong.
    """
    net = ModelDict()
    net.images = inputs["images"]
    for layer in read_layers(config["model.layers"], classes=config["model.num_classes"]):
        net[layer.name] = layer(net.last, train_phase)
    net.probabilities = tf.nn.softmax(net.logits)
    net.predictions = tf.argmax(net.logits, axis=-1, output_type=tf.int32)

    if "labels" in inputs:
        labels = inputs["labels"]
        net.loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=net.logits))
        net.accuracy = tf.reduce_mean(tf.cast(net.predictions == labels, tf.float32))
    return net
