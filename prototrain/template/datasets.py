"""The data: points on two intertwined spirals. Replace it with your own.

`prototrain.readers` has readers for JSON lines, CSV, Parquet, TFRecord files and folders of images.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from .config import config


def datasets() -> dict[str, tf.data.Dataset]:
    """Returns datasets of dicts with "points", float32 [batch, 2], and "labels", int32 [batch], 0 or 1.

    "trn" is for training; the trainer repeats it. "vld" is for validation during training, and "tst" for
    `prototrain action prototrain.template evaluate`.
    """
    # Read the config here, not at import, so that `-s model.batch_size=64` has an effect.
    batch_size = config["model.batch_size"]
    return {
        "trn": spirals(1600, seed=1).shuffle(1600).batch(batch_size, drop_remainder=True),
        "vld": spirals(200, seed=2).batch(batch_size),
        "tst": spirals(200, seed=3).batch(batch_size),
    }


def spirals(count: int, *, seed: int) -> tf.data.Dataset:
    """Returns a dataset of `count` single examples with a little noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    distance = random.uniform(0.1, 1.0, count)
    angle = 3 * np.pi * distance + np.pi * labels
    points = distance[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1) + random.normal(0, 0.02, (count, 2))
    return tf.data.Dataset.from_tensor_slices({"points": points.astype(np.float32), "labels": labels.astype(np.int32)})
