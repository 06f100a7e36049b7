"""Batches of images and labels from all sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain import readers
from prototrain.errors import ConfigError

from .config import config
from .fields import Field, choice, integer, pair
from .shards import Shards
from .sources import PARALLEL, Digits, Folders, Source

FAULTS = ("data.on_empty_class", "data.on_broken_picture", "data.on_unknown_class")
KEYS = {
    "model.num_classes": integer(),
    "model.picture_size": pair(),
    "model.channels": Field(expected="1, 3 or 4", accepts=lambda value: type(value) is int and value in (1, 3, 4)),
    "data.format": choice("digits", "folders", "tfrecords"),
    "data.directory": Field(expected="a path", accepts=lambda value: isinstance(value, str) and value != ""),
    "data.check_pictures": choice(True, False),
    "data.parallel_shards": integer(),
    "data.shuffle_buffer": integer(),
    **dict.fromkeys(FAULTS, choice("refuse", "skip")),
}


def datasets() -> dict[str, tf.data.Dataset]:
    """Return datasets of "images", float32 [batch, height, width, channels] in 0..1, and "labels", int32 [batch].

    What is shuffled, and lies in the checkpoint as part of the data's position, is names or encoded images. Decoding is
    parallel, and still in the same order in every run.

    Raises:
        ConfigError, DataError: a key or an image is wrong.
    """
    source, classes = open_source(), _checked("model.num_classes")
    if len(source.classes) != classes:
        names = ", ".join(source.classes[:10]) + (", ..." if len(source.classes) > 10 else "")
        raise ConfigError(f"model.num_classes is {classes}, but the data has {len(source.classes)} classes: {names}")
    size, channels = _checked("model.picture_size"), _checked("model.channels")

    def decode(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        image = readers.decode_image(example["image"], size=size, channels=channels)
        return {"images": image, "labels": tf.cast(example["label"], tf.int32)}

    def batches(split: str) -> tf.data.Dataset:
        training = split == "trn"
        decoded = source.encoded(split, shuffle=training).map(decode, **PARALLEL)
        return decoded.batch(config["model.batch_size"], drop_remainder=training)

    return {split: batches(split) for split in source.splits}


def open_source() -> Source:
    """Return the source of `data.format`.

    Raises:
        ConfigError, DataError: a key or an image is wrong.
    """
    kind = _checked("data.format")
    if kind == "digits":
        return Digits()
    directory = Path(_checked("data.directory"))
    if kind == "tfrecords":
        return Shards(directory, parallel=_checked("data.parallel_shards"), buffer=_checked("data.shuffle_buffer"))
    faults = {key: _checked(key) for key in FAULTS}
    return Folders(directory, faults=faults, check=_checked("data.check_pictures"), channels=_checked("model.channels"))


def _checked(key: str) -> Any:
    return KEYS[key].check(key, config[key])
