"""The digits of `models.simple`, as images."""

from __future__ import annotations

import tensorflow as tf

from models.simple.datasets import read

from .config import config


def datasets() -> dict[str, tf.data.Dataset]:
    """Return datasets of dicts with "images", float32 [batch, 8, 8, 1] in 0..1."""
    batch_size = config["model.batch_size"]
    trn = read("trn").shuffle(2000).batch(batch_size, drop_remainder=True)
    return {"trn": trn.map(images), "vld": read("vld").batch(batch_size).map(images)}


def images(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Convert a batch for `build`."""
    return {"images": tf.reshape(tf.cast(batch["example"], tf.float32) / 16.0, [-1, 8, 8, 1])}
