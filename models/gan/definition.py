"""Two multilayer perceptrons: a generator of digits and a discriminator."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from prototrain.model import ModelDict

from .config import config


def build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """Builds both networks for one batch.

    Variable names begin with ``generator/`` or ``discriminator/``, which `GANTrainer` uses to tell the networks apart.

    Args:
        inputs: "images", real ones, float32 [batch, 8, 8, 1] in 0..1; without them only the generator is built.
            Optional "noise", float32 [batch, noise_size], the input of the generator; random by default.
        train_phase: whether the model is built for training.

    Returns:
        All tensors by name: "samples" are the generated images, "d_loss" and "g_loss" are the losses that `GANTrainer`
        minimizes.
    """
    net = ModelDict()
    net.noise = inputs["noise"] if "noise" in inputs else _noise(tf.shape(inputs["images"])[0], train_phase)
    with tf.name_scope("generator"):
        net.samples = _generator(net.noise, train_phase)
    if "images" in inputs:
        with tf.name_scope("discriminator"):
            net.logits = _discriminator(tf.concat([inputs["images"], net.samples], 0), train_phase)
        real, drawn = tf.split(net.logits, 2)
        # Cross entropy, where a positive logit says "real". What the generator minimizes is not the negative of that,
        # which would give it no gradient while all its samples are found out (arXiv:1406.2661).
        net.d_loss = tf.reduce_mean(tf.nn.softplus(-real) + tf.nn.softplus(drawn))
        net.g_loss = tf.reduce_mean(tf.nn.softplus(-drawn))
        net.d_accuracy = (_share(real > 0) + _share(drawn <= 0)) / 2
    return net


def _noise(count: tf.Tensor, train_phase: bool) -> tf.Tensor:
    """Return random numbers for `count` samples; the same ones in every evaluation, so that samples can be compared."""
    shape = (count, config["model.noise_size"])
    if not train_phase:
        return tf.random.stateless_normal(shape, seed=[0, 0])
    # The state of a SeedGenerator is a variable: it is saved, and each tower draws its own numbers.
    return keras.random.normal(shape, seed=keras.random.SeedGenerator(name="noise"))


def _generator(noise: tf.Tensor, train_phase: bool) -> tf.Tensor:
    x = noise
    for i, units in enumerate(config["model.generator_units"]):
        x = keras.layers.Dense(units, use_bias=False, name=f"fc{i}")(x)
        x = keras.layers.BatchNormalization(momentum=0.9, name=f"bn{i}")(x, training=train_phase)
        x = tf.nn.relu(x)
    return tf.reshape(keras.layers.Dense(64, activation="sigmoid", name="pixels")(x), [-1, 8, 8, 1])


def _discriminator(images: tf.Tensor, train_phase: bool) -> tf.Tensor:
    # Noise and dropout keep it from learning the 1,257 real digits by heart.
    x = keras.layers.GaussianNoise(0.1, name="noise")(tf.reshape(images, [-1, 64]), training=train_phase)
    for i, units in enumerate(config["model.discriminator_units"]):
        x = tf.nn.leaky_relu(keras.layers.Dense(units, name=f"fc{i}")(x))
        x = keras.layers.Dropout(0.3, name=f"dropout{i}")(x, training=train_phase)
    return keras.layers.Dense(1, name="logits")(x)


def _share(found: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.cast(found, tf.float32))
