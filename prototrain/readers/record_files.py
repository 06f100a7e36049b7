"""TFRecord files of `tf.train.Example` messages."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.columns import CHUNK, Arrays, Column
from prototrain.readers.order import Order, block_of, check_shuffle, random_order
from prototrain.readers.paths import PathLike, matching_files, several, shown
from prototrain.readers.tables import Table, table_of
from prototrain.system.tracebacks import cause

_HEADER, _FOOTER = 12, 4  # bytes around each record: its length and a checksum of that, and one of its content
_KEPT_OPEN = 256  # files
_PARSED = 256  # records at once at most, in the files' order; more are no quicker, and all of a block is in checkpoints

# Parallel, and still the same order in every run.
_PARALLEL: Any = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}


def tfrecords(
    patterns: PathLike | Iterable[PathLike],
    *,
    features: Mapping[str, Any],
    compression: str | None = None,
    cycle_length: int = 4,
    shuffle: Literal["index", False] | None = None,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads TFRecord files of `tf.train.Example` messages, several files at a time, always in the same order.

    Args:
        patterns: one file or glob pattern, or several; what they match is sorted. What URLs match is downloaded.
        features: name -> (dtype, shape) with dtype float32, int64 or string, or any feature of `tf.io`.
        compression: None, "GZIP" or "ZLIB".
        cycle_length: how many files are read in turn, one example of each.
        shuffle: "index" gives all examples in a new random order in each pass, whatever their number. Where each record
            lies is found out, and its checksum verified, once, and again when the files have changed.
        seed: of that order; None for the run's.

    Returns:
        A dataset of dictionaries name -> tensor.

    Raises:
        DataError: a pattern matches no file, a feature has a dtype that examples do not hold, or files that are to be
            shuffled by index are compressed or damaged.
        StorageError: files at a URL cannot be downloaded.
    """
    files: list[str] = []
    for pattern in several(patterns):
        found = matching_files(pattern)
        if not found:
            raise DataError(f"{shown(pattern)}: matches no file; name a TFRecord file or a glob pattern of some")
        files += found
    parsed = {name: _record_feature(name, feature) for name, feature in features.items()}
    files = sorted(set(files))
    if shuffle is not None and shuffle is not False:
        check_shuffle(shuffle)
        if compression:
            raise DataError(
                f'files compressed with {compression} cannot be read in any order: shuffle="index" needs others'
            )
        return _by_index([os.path.abspath(file) for file in files], parsed, seed)
    names = tf.data.Dataset.from_tensor_slices(files)

    def read(file: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(file, compression_type=compression)

    records = names.interleave(read, cycle_length=cycle_length, **_PARALLEL)
    if _are_fixed(parsed) and all(tf.as_dtype(feature.dtype) != tf.string for feature in parsed.values()):
        # To parse numbers one by one takes ten times as long. What holds texts may be large: pictures, for example.
        blocks = records.batch(block_of(sum(map(_size, parsed.values())), _PARSED))
        return blocks.map(lambda block: tf.io.parse_example(block, parsed), **_PARALLEL).unbatch()
    return records.map(lambda record: tf.io.parse_single_example(record, parsed), **_PARALLEL)


def _by_index(files: list[str], features: dict[str, Any], seed: int | None) -> tf.data.Dataset:
    columns = [Column(name, dtype, (), "an index holds") for name, dtype in _PLACES.items()]
    table = table_of("tfrecord", [(shown(file), file) for file in files], columns, lambda: _places(files))
    records = _Records(files, table)

    def read(rows: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(records.take, [rows], tf.string), [None])

    order, size = Order(len(table), seed), sum(map(os.path.getsize, files)) / len(table)
    if _are_fixed(features):
        return random_order(
            order, lambda rows: tf.io.parse_example(read(rows), features), about="records", files=files, each=size
        )
    return random_order(
        order,
        lambda row: tf.io.parse_single_example(read(row[None])[0], features),
        about="records",
        files=files,
        each=None,
    )


def _size(feature: Any) -> int:
    """The bytes of a feature of numbers in one example."""
    return int(tf.TensorShape(feature.shape).num_elements()) * int(tf.as_dtype(feature.dtype).size)


def _are_fixed(features: dict[str, Any]) -> bool:
    """Whether examples that are parsed together are the same as one by one."""
    return all(isinstance(feature, tf.io.FixedLenFeature) for feature in features.values())


_PLACES = {"file": "int32", "start": "int64", "length": "int64"}


def _places(files: list[str]) -> Iterator[Arrays]:
    """Where each record lies; TensorFlow reads all of them for that, and verifies their checksums."""
    for number, file in enumerate(files):
        lengths = tf.data.TFRecordDataset(file, buffer_size=2**20).batch(CHUNK).map(tf.strings.length)
        end = 0
        try:
            for found in lengths.as_numpy_iterator():
                length = found.astype(np.int64)
                ends = end + np.cumsum(length + _HEADER + _FOOTER)
                starts = ends - _FOOTER - length
                end = int(ends[-1])
                yield {"file": np.full(len(length), number, np.int32), "start": starts, "length": length}
        except tf.errors.OpError as error:
            raise DataError(f"{shown(file)}: not a whole TFRecord file ({cause(error)})") from error


class _Records:
    """Records by their numbers.

    Args:
        files: that they are in.
        table: where each lies.
    """

    def __init__(self, files: list[str], table: Table) -> None:
        self._files = files
        self._table = table
        self._opened: dict[int, int] = {}
        weakref.finalize(self, _close, self._opened)

    def take(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The bytes of some records."""
        found = np.empty(len(rows), object)
        places = (column.tolist() for column in self._table.take(rows))
        for row, (number, start, length) in enumerate(zip(*places, strict=True)):
            record = self._read(number, start, length)
            if len(record) != length:
                raise DataError(f"{shown(self._files[number])}: has become shorter while it is read")
            found[row] = record
        return found

    def _read(self, number: int, start: int, length: int) -> bytes:
        if number not in self._opened:
            descriptor = os.open(self._files[number], os.O_RDONLY | os.O_CLOEXEC)
            if len(self._opened) >= _KEPT_OPEN or self._opened.setdefault(number, descriptor) != descriptor:
                try:
                    return os.pread(descriptor, length, start)
                finally:
                    os.close(descriptor)
        return os.pread(self._opened[number], length, start)


def _close(opened: dict[int, int]) -> None:
    for descriptor in opened.values():
        os.close(descriptor)


def _record_feature(name: str, feature: Any) -> Any:
    if type(feature) is not tuple:  # the `tf.io` features are named tuples, subclasses of it
        return feature
    dtype = tf.as_dtype(feature[0])
    if dtype not in (tf.float32, tf.int64, tf.string):
        raise DataError(f"{name!r}: TFRecords hold float32, int64 and string, not {dtype.name}; cast it afterwards")
    return tf.io.FixedLenFeature(feature[1], dtype)
