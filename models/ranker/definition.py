"""The model: embeddings of length 1, and the triplet loss on pairs of images."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from prototrain.errors import ConfigError
from prototrain.model import ModelDict

from .backbone import features
from .config import config
from .mining import mine

PICTURES_SHOWN = 8


def build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """Builds the model for one batch.

    Args:
        inputs: "query", uint8 [pairs, height, width, 3], and for a loss "positive", likewise, and "product", int32
            [pairs].
        train_phase: whether the model is built for training.

    Returns:
        every tensor by name: "query_embeddings" (and "positive_embeddings"), float32 [pairs, units], the "loss" and
        the scalars of `Triplets.scalars`.
    """
    net = ModelDict()
    is_pair = "positive" in inputs
    # All in one go, so that batch normalization sees queries and positives alike.
    net.pictures = tf.concat([inputs["query"], inputs["positive"]], 0) if is_pair else inputs["query"]
    net.features = features(net.last, train_phase)
    units = config["model.embedding_units"]
    if units is not None:
        net.reduced = keras.layers.Dense(units, use_bias=False, dtype="float32", name="reduction")(net.last)
    net.embeddings = tf.math.l2_normalize(tf.cast(net.last, tf.float32), axis=1)
    if not is_pair:
        net.query_embeddings = net.embeddings
        return net
    net.query_embeddings, net.positive_embeddings = tf.split(net.embeddings, 2)
    if "product" in inputs:
        _add_loss(net, inputs)
        if train_phase:
            _show_triplets(net, inputs)
    return net


def _add_loss(net: ModelDict, inputs: Mapping[str, tf.Tensor]) -> None:
    mining = config["model.mining"]
    if mining not in ("global", "tower"):
        raise ConfigError(f'model.mining: expected "global" or "tower", got {mining!r}')
    pairs = net.query_embeddings, net.positive_embeddings, inputs["product"]
    triplets = mine(*pairs, over_all_towers=mining == "global")
    net.update(triplets.scalars(config["model.margin"]))


def _show_triplets(net: ModelDict, inputs: Mapping[str, tf.Tensor]) -> None:
    """Record rows of query, positive, and hardest negative of this tower's images."""
    shown = slice(0, PICTURES_SHOWN)
    triplets = mine(net.query_embeddings, net.positive_embeddings, inputs["product"], over_all_towers=False)
    negatives = tf.gather(net.pictures, triplets.hardest[shown])
    rows = tf.concat([inputs["query"][shown], inputs["positive"][shown], negatives], 2)
    _, _, width, channels = rows.shape
    tf.summary.image("query_positive_negative", tf.reshape(rows, [1, -1, width, channels]))
