"""Encoded images in TFRecord shards, with an index."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain import readers
from prototrain.config.values import read_object
from prototrain.errors import DataError
from prototrain.system.files import sync, write_atomic
from prototrain.system.tracebacks import cause

LIST = "shards.json"
FEATURES: readers.Features = {"image": ("string", []), "label": ("int64", [])}


class Shards:
    """The files of `write_shards`.

    Args:
        path: the directory.
        parallel: the number of shards that are read in turn.
        buffer: the size of the shuffle buffer in examples.

    Raises:
        DataError: there are no shards, or they are damaged.
    """

    def __init__(self, path: Path, *, parallel: int, buffer: int) -> None:
        if not (path / LIST).is_file():
            raise DataError(
                f"{path} has no {LIST}, so there are no shards or they are not all written; make them with "
                "prototrain action models.convnet models.convnet.actions.make_tfrecords"
            )
        listed = read_object(path / LIST)
        if not {"classes", "splits"} <= listed.keys():
            raise DataError(f"{path / LIST} is not a list of shards")
        self._path, self._parallel, self._buffer = path, parallel, buffer
        self.classes: list[str] = listed["classes"]
        self._shards: dict[str, dict[str, dict[str, int]]] = listed["splits"]
        self.splits = list(self._shards)
        for shards in self._shards.values():
            for name, shard in shards.items():
                _check_size(path / name, shard["bytes"])

    def encoded(self, split: str, *, shuffle: bool) -> tf.data.Dataset:
        """See `Source`."""
        shards = self._shards[split]
        files = [glob.escape(str(self._path / name)) for name in shards]
        records = readers.tfrecords(files, features=FEATURES, cycle_length=self._parallel)
        counted = records.apply(tf.data.experimental.assert_cardinality(sum(s["examples"] for s in shards.values())))
        return counted.shuffle(self._buffer) if shuffle else counted


def write_shards(
    path: Path, splits: dict[str, Iterable[dict[str, Any]]], *, classes: list[str], shards: int
) -> dict[str, int]:
    """Write examples to TFRecord files, several per split, and the index last.

    Args:
        path: the directory; created if necessary.
        splits: examples by split, with "image", the bytes of an image file, and "label", an index into `classes`.
        classes: the names of the classes.
        shards: the number of files per split.

    Returns:
        the number of examples by split.

    Raises:
        DataError: the directory already contains shards or cannot be written, or an example cannot be read.
    """
    if (path / LIST).exists():
        raise DataError(f"{path} holds shards already; remove it, or choose another directory")
    try:
        path.mkdir(parents=True, exist_ok=True)
        listed = {split: _write_split(path, split, examples, shards) for split, examples in splits.items()}
        write_atomic(path / LIST, json.dumps({"classes": classes, "splits": listed}, indent=1) + "\n")
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"making shards in {path} failed: {cause(error)}") from error
    return {split: sum(shard["examples"] for shard in files.values()) for split, files in listed.items()}


def _check_size(file: Path, expected: int) -> None:
    size = file.stat().st_size if file.is_file() else None
    if size != expected:
        found = "is missing" if size is None else f"has {size} bytes"
        raise DataError(f"{file} {found} where {expected} bytes were written; make the shards again")


def _write_split(path: Path, split: str, examples: Iterable[dict[str, Any]], shards: int) -> dict[str, dict[str, int]]:
    names = [f"{split}-{number:05d}-of-{shards:05d}.tfrecord" for number in range(shards)]
    counts = dict.fromkeys(names, 0)
    with ExitStack() as stack:
        writers = [stack.enter_context(tf.io.TFRecordWriter(str(path / name))) for name in names]
        for number, example in enumerate(examples):
            writers[number % shards].write(_record(example))
            counts[names[number % shards]] += 1
    for name in names:
        sync(path / name)
    return {name: {"examples": counts[name], "bytes": os.path.getsize(path / name)} for name in names}


def _record(example: dict[str, Any]) -> bytes:
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[example["image"]])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(example["label"])])),
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
