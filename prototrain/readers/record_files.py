"""A reader of TFRecord files of `tf.train.Example` messages."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import PARALLEL, Order, Shuffle, block_of, is_by_index, random_order
from prototrain.readers.paths import matching_files, several, shown
from prototrain.readers.tables import CHUNK, dtype_of
from prototrain.system.files import PathLike, cache_home, url_of, write_atomic
from prototrain.system.terminal import announcing
from prototrain.system.tracebacks import cause

_HEADER, _FOOTER = 12, 4  # bytes around each record: its length with a checksum, and a checksum of its content
_PARSED = 256  # maximum records parsed at once in file order; more is not faster, and checkpoints contain the block


def tfrecords(
    patterns: PathLike | Iterable[PathLike],
    *,
    features: Mapping[str, Any],
    compression: str | None = None,
    cycle_length: int = 4,
    shuffle: Shuffle = None,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Read TFRecord files of `tf.train.Example` messages, several files at a time, in a deterministic order.

    Args:
        patterns: one or more files or glob patterns; the matches are sorted. Matches of URLs are downloaded.
        features: name -> (dtype, shape) with dtype float32, int64 or string, or any `tf.io` feature.
        compression: None, "GZIP" or "ZLIB".
        cycle_length: number of files to interleave, one example at a time.
        shuffle: "index" returns all examples in a new random order in each pass. The first call reads the files to find
            the offsets of the records, which are cached until the files change, and verifies the checksums.
        seed: seed of the order; None for the run's seed.

    Returns:
        A dataset of dictionaries name -> tensor.

    Raises:
        DataError: `compression` is unknown, a pattern matches no file, or, with `shuffle="index"`, the files are
            compressed or damaged.
        StorageError: files at a URL cannot be downloaded.
    """
    if compression not in (None, "GZIP", "ZLIB"):
        raise DataError(f'tfrecords: compression must be None, "GZIP" or "ZLIB", not {compression!r}')
    files: list[str] = []
    given = several(patterns)
    for pattern in given:
        found = matching_files(pattern)
        if not found:
            raise DataError(f"{shown(pattern)}: matches no file; name a TFRecord file or a glob pattern of some")
        files += found
    parsed = {name: _record_feature(name, feature) for name, feature in features.items()}
    if not any(map(url_of, given)):  # the names of downloads are digests
        files.sort()
    files = list(dict.fromkeys(files))
    if is_by_index(shuffle):
        if compression:
            raise DataError(f'shuffle="index" does not work with files that are compressed with {compression}')
        return _by_index([os.path.abspath(file) for file in files], parsed, seed)
    names = tf.data.Dataset.from_tensor_slices(files)

    def read(file: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(file, compression_type=compression)

    records = names.interleave(read, cycle_length=cycle_length, **PARALLEL)
    if _are_fixed(parsed) and all(tf.as_dtype(feature.dtype) != tf.string for feature in parsed.values()):
        # Parsing numbers one by one takes ten times as long. Strings may be large, such as images.
        sizes = [tf.TensorShape(one.shape).num_elements() * tf.as_dtype(one.dtype).size for one in parsed.values()]
        blocks = records.batch(block_of(sum(sizes), _PARSED))
        return blocks.map(lambda block: tf.io.parse_example(block, parsed), **PARALLEL).unbatch()
    return records.map(lambda record: tf.io.parse_single_example(record, parsed), **PARALLEL)


def _by_index(files: list[str], features: dict[str, Any], seed: int | None) -> tf.data.Dataset:
    places = _places(files)

    def take(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = np.empty(len(rows), object)
        wanted = sorted(zip(places[rows].tolist(), range(len(rows)), strict=True))  # each file is opened once
        for number, of_file in groupby(wanted, lambda one: one[0][0]):
            with open(files[number], "rb", buffering=0) as file:
                for (_, start, length), row in of_file:
                    found[row] = os.pread(file.fileno(), length, start)
                    if len(found[row]) != length:
                        raise DataError(f"{shown(files[number])}: has become shorter while it is read")
        return found

    def parse(rows: tf.Tensor) -> dict[str, Any]:
        records = tf.ensure_shape(tf.numpy_function(take, [tf.reshape(rows, [-1])], tf.string), [None])
        found = tf.io.parse_example(records, features) if fixed else tf.io.parse_single_example(records[0], features)
        return dict(found)

    fixed = _are_fixed(features)
    size = float(places[:, 2].sum()) / len(places)
    return random_order(Order(len(places), seed), parse, about="records", files=files, each=size if fixed else None)


def _are_fixed(features: dict[str, Any]) -> bool:
    """Return whether parsing examples in blocks gives the same result as one by one."""
    return all(isinstance(feature, tf.io.FixedLenFeature) for feature in features.values())


def _places(files: list[str]) -> np.ndarray[Any, Any]:
    """Return the file index, byte offset and length of each record, int64 [records, 3].

    The files are read once, which verifies the checksums. The result is cached until they change.
    """
    home = cache_home() / "tables"
    names = shown(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    try:
        made_of = [(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
        path = home / f"{hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]}.npy"
        if not path.is_file():
            with announcing(f"finding the records of {names}, to be read in any order"):
                found = np.concatenate([_scan(number, file) for number, file in enumerate(files)])
            home.mkdir(parents=True, exist_ok=True)
            np.save(content := io.BytesIO(), found)
            write_atomic(path, content.getvalue())
        places: np.ndarray[Any, Any] = np.load(path, mmap_mode="r")
    except OSError as error:
        text = f"{names}: the places of the records cannot be kept in {home} ({error.strerror})"
        raise DataError(f"{text}; PROTOTRAIN_CACHE names another place") from error
    if not len(places):
        raise DataError(f"{names}: holds no examples")
    return places


def _scan(number: int, file: str) -> np.ndarray[Any, Any]:
    lengths = tf.data.TFRecordDataset(file, buffer_size=2**20).batch(CHUNK).map(tf.strings.length)
    try:
        length = np.concatenate([np.empty(0, np.int64), *lengths.as_numpy_iterator()])
    except tf.errors.OpError as error:
        raise DataError(f"{shown(file)}: not a whole TFRecord file ({cause(error)})") from error
    ends = np.cumsum(length + _HEADER + _FOOTER)
    return np.stack([np.full_like(length, number), ends - _FOOTER - length, length], axis=1)


def _record_feature(name: str, feature: Any) -> Any:
    if type(feature) is not tuple:  # `tf.io` features are named tuples, a subclass
        return feature
    dtype, shape = feature
    found = dtype_of(name, dtype)
    if found not in (tf.float32, tf.int64, tf.string) or not tf.TensorShape(shape).is_fully_defined():
        cure = "use float32, int64 or string with a fixed shape, and tf.cast; or a feature of tf.io"
        raise DataError(f"features: a TFRecord has no {found.name} of shape {shape} for {name!r}; {cure}")
    return tf.io.FixedLenFeature(shape, found)
