"""The network below the embedding: a small one for the sample catalogue, or one of `keras.applications`."""

from __future__ import annotations

import inspect

import keras
import tensorflow as tf

from prototrain.errors import ConfigError
from prototrain.system.terminal import did_you_mean
from prototrain.system.tracebacks import cause

from .config import backbone_name, config, picture_size


def features(pictures: tf.Tensor, train_phase: bool) -> tf.Tensor:
    """Return the features of images.

    Args:
        pictures: uint8 [batch, height, width, 3].
        train_phase: whether batch normalization uses and updates the statistics of the batch.

    Returns:
        [batch, features], averaged over the positions of the images.

    Raises:
        ConfigError: there is no such network, it does not accept such images, or its weights cannot be loaded.
    """
    training = train_phase and not config["model.backbone.fixed_statistics"]
    pixels = tf.cast(pictures, tf.float32)
    if backbone_name() == "convnet":
        return _convnet(pixels / 127.5 - 1.0, training)
    network = _application(config["model.backbone.weights"])
    module = getattr(keras.applications, backbone_name()).__module__.rpartition(".")[2]
    return network(getattr(keras.applications, module).preprocess_input(pixels), training=training)


def _convnet(pixels: tf.Tensor, training: bool) -> tf.Tensor:
    net, stages = pixels, config["model.backbone.filters"]
    for number, filters in enumerate(stages):
        net = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"conv{number}")(net)
        # Statistics of the whole batch, so that the loss does not depend on the number of towers either.
        normalize = keras.layers.BatchNormalization(momentum=0.9, synchronized=True, name=f"bn{number}")
        if number < len(stages) - 1:
            net = tf.nn.max_pool2d(net, 2, 2, "SAME")  # before the rest, which is then a quarter of the work
        net = tf.nn.relu(normalize(net, training=training))
    # Without a scale or an offset this last one spreads a batch's embeddings, which cannot all fall into one
    # point then: that is where the hardest negatives would drive a network that has learnt nothing yet.
    center = keras.layers.BatchNormalization(momentum=0.9, synchronized=True, center=False, scale=False, name="center")
    return center(tf.reduce_mean(net, [1, 2]), training=training)


def _application(weights: str | None) -> keras.Model:
    name, (height, width) = backbone_name(), picture_size()
    application = getattr(keras.applications, name, None)
    if not inspect.isfunction(application):
        known = [name for name, value in vars(keras.applications).items() if inspect.isfunction(value)]
        raise ConfigError(f"model.backbone.name: there is no {name!r}{did_you_mean(name, ['convnet', *known])}")
    try:
        return application(include_top=False, weights=weights, input_shape=(height, width, 3), pooling="avg")
    except Exception as error:  # Keras raises many kinds for sizes, files and downloads that it cannot use
        given = "" if weights is None else f" with model.backbone.weights {weights!r}"
        raise ConfigError(
            f"model.backbone.name: {name}{given} cannot be made for {height}x{width} pictures: {cause(error)}"
        ) from error
