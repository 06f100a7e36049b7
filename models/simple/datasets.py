"""Batches of digits for training (trn), validation (vld) and test (tst)."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from prototrain import readers

from .config import config

DATA = Path(__file__).parent / "data"


def datasets() -> dict[str, tf.data.Dataset]:
    """Return datasets of dicts with "examples", float32 [batch, 64] in 0..1, and "labels", int32 [batch] in 0..9."""
    # Read in the function, since `-s model.batch_size=64` changes the config after the import.
    batch_size = config["model.batch_size"]

    # shuffle() needs no seed: the trainer sets TensorFlow's global seed before it calls this function.
    # Every training batch is full. The trainer repeats the data, in a new order in each pass, and prefetches it.
    trn = read("trn").shuffle(2000).batch(batch_size, drop_remainder=True)
    return {
        "trn": trn.map(scale),
        "vld": read("vld").batch(batch_size).map(scale),
        "tst": read("tst").batch(batch_size).map(scale),
    }


def read(name: str) -> tf.data.Dataset:
    """Read a file of lines `{"example": [64 ints in 0..16], "label": 7}`."""
    return readers.json_lines(DATA / f"{name}.jsonl", features={"example": ("uint8", [64]), "label": ("int32", [])})


def scale(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Convert a batch for `build`. Mapping whole batches is much faster than mapping every digit."""
    labels = {"labels": tf.cast(batch["label"], tf.int32)} if "label" in batch else {}
    return {"examples": tf.cast(batch["example"], tf.float32) / 16.0, **labels}


serving = scale
"""For `prototrain action models.simple predict --files`: new digits, with or without labels."""
