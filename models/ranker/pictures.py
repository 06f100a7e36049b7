"""Reading and augmentation of images. All random choices are functions of a seed."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from prototrain.errors import ConfigError

from .config import config, picture_size
from .layouts import Picture

_RATIO = 1.15  # how much a random crop may change the proportions, at most


def decode(path: tf.Tensor | str) -> tf.Tensor:
    """Read a picture, uint8 [height, width, 3]."""
    picture = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    return tf.ensure_shape(picture, [None, None, 3])


def plain(path: tf.Tensor) -> tf.Tensor:
    """Return an image resized for the network, uint8 [height, width, 3]."""
    return _to_bytes(tf.image.resize(decode(path), picture_size()))


def thumbnail(directory: Path, picture: Picture, side: int) -> bytes:
    """Return an image as a JPEG file of at most `side` x `side` pixels, with its aspect ratio."""
    seen = decode(str(directory / picture.path))
    if max(seen.shape[:2]) > side:
        seen = _to_bytes(tf.image.resize(seen, [side, side], preserve_aspect_ratio=True, antialias=True))
    return tf.io.encode_jpeg(seen, quality=85).numpy()


def augmented(path: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return an augmented image: cropped, resized, flipped and with noise, as configured.

    Args:
        path: the path of the file.
        seed: int64 [2].

    Returns:
        uint8 [height, width, 3].
    """
    seeds = tf.random.split(seed, 5)
    picture = _crop(decode(path), seeds[0])
    picture = _resize(picture, seeds[1])
    if config["model.augment.flip"]:
        picture = tf.image.stateless_random_flip_left_right(picture, seeds[2])
    if config["model.augment.noise"]:
        deviation = tf.random.stateless_uniform([], seeds[3], maxval=config["model.augment.noise"])
        picture += tf.random.stateless_normal(picture.shape, seeds[4], stddev=deviation)
    return _to_bytes(picture)


def _crop(picture: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    smallest = config["model.augment.crop"]
    if not 0.0 < smallest <= 1.0:
        raise ConfigError(f"model.augment.crop: expected a share of the area, above 0 and up to 1, got {smallest!r}")
    if smallest == 1.0:
        return picture
    area, stretch, *place = tf.unstack(tf.random.stateless_uniform([4], seed))
    side = tf.sqrt(smallest + area * (1.0 - smallest))
    ratio = _RATIO ** (stretch - 0.5)
    whole = tf.cast(tf.shape(picture)[:2], tf.float32)
    kept = tf.clip_by_value(whole * tf.stack([side * ratio, side / ratio]), 1.0, whole)
    start = tf.cast((whole - kept) * tf.stack(place), tf.int32)
    return tf.slice(picture, tf.concat([start, [0]], 0), tf.concat([tf.cast(kept, tf.int32), [3]], 0))


def _resize(picture: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    methods = config["model.augment.resize_methods"]
    known = sorted(vars(tf.image.ResizeMethod)[name] for name in dir(tf.image.ResizeMethod) if name.isupper())
    if not methods or not set(methods) <= set(known):
        raise ConfigError(f"model.augment.resize_methods: expected some of {', '.join(known)}, got {methods!r}")

    def by(method: str) -> tf.Tensor:
        return tf.cast(tf.image.resize(picture, picture_size(), method=method), tf.float32)

    drawn = tf.random.stateless_uniform([], seed, maxval=len(methods), dtype=tf.int32)
    return tf.switch_case(drawn, [lambda method=method: by(method) for method in methods])


def _to_bytes(picture: tf.Tensor) -> tf.Tensor:
    # A quarter of the memory of floats, in the batches that are read ahead and in each checkpoint that holds them.
    return tf.cast(tf.clip_by_value(tf.round(picture), 0.0, 255.0), tf.uint8)
