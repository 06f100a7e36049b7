"""Writes the images of the config keys data.* to TFRecord shards."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import tensorflow as tf

from prototrain.errors import ConfigError
from prototrain.model import Model

from ..datasets import open_source
from ..shards import write_shards


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the action."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIRECTORY", help="where the shards go")
    parser.add_argument("--shards", type=int, default=4, metavar="N", help="files for each of trn, vld and tst (4)")


def run(model: Model, args: Namespace) -> None:
    """Write the images of `data.*`, shuffled once, as encoded images and labels.

    Args:
        model: the model with the data.
        args: `out` and `shards`.

    Raises:
        ConfigError: the data is already in shards.
        DataError: an image cannot be read, or the directory cannot be written.
    """
    if model.config["data.format"] == "tfrecords":
        raise ConfigError('data.format is "tfrecords": set it, and data.directory, to what is to be converted')
    if args.shards < 1:
        raise ConfigError(f"--shards: expected at least 1, got {args.shards}")
    tf.random.set_seed(model.config["trainer.random_seed"])
    source = open_source()
    splits = {split: source.encoded(split, shuffle=True).as_numpy_iterator() for split in source.splits}
    counts = write_shards(args.out, splits, classes=source.classes, shards=args.shards)
    print(f"{args.out}: {', '.join(f'{count} images in {split}' for split, count in counts.items())}")
    print(f"train on them with -s data.format=tfrecords -s data.directory={args.out}")
