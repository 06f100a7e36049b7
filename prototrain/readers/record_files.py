"""A reader of TFRecord files of `tf.train.Example` messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import PARALLEL, block_of
from prototrain.readers.paths import display_path, matching_files, several
from prototrain.readers.tables import dtype_and_shape, require_features
from prototrain.system.files import PathLike, url_of

_PARSED = 256  # maximum records parsed at once in file order; more is not faster, and checkpoints contain the block


def tfrecords(
    patterns: PathLike | Iterable[PathLike],
    *,
    features: Mapping[str, Any],
    compression: str | None = None,
    cycle_length: int = 4,
) -> tf.data.Dataset:
    """Read TFRecord files of `tf.train.Example` messages, several files at a time, in a deterministic order.

    Args:
        patterns: one or more files or glob patterns; the matches are sorted. Matches of URLs are downloaded.
        features: name -> (dtype, shape) with dtype float32, int64 or string, or any `tf.io` feature.
        compression: None, "GZIP" or "ZLIB".
        cycle_length: number of files to interleave, one example at a time.

    Returns:
        A dataset of dictionaries name -> tensor.

    Raises:
        DataError: `compression` is unknown, or a pattern matches no file.
        StorageError: files at a URL cannot be downloaded.
    """
    if compression not in (None, "GZIP", "ZLIB"):
        raise DataError(f'tfrecords: compression must be None, "GZIP" or "ZLIB", not {compression!r}')
    require_features(features)
    files: list[str] = []
    given = several(patterns)
    for pattern in given:
        found = matching_files(pattern)
        if not found:
            raise DataError(f"{display_path(pattern)}: matches no file; name a TFRecord file or a glob pattern of some")
        files += found
    parsed = {name: _record_feature(name, feature) for name, feature in features.items()}
    if not any(map(url_of, given)):  # the names of downloads are digests
        files.sort()
    files = list(dict.fromkeys(files))
    if not files:
        raise DataError("tfrecords: there are no files to read")
    names = tf.data.Dataset.from_tensor_slices(files)

    def read(file: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(file, compression_type=compression)

    records = names.interleave(read, cycle_length=cycle_length, **PARALLEL)
    if all(isinstance(one, tf.io.FixedLenFeature) and tf.as_dtype(one.dtype) != tf.string for one in parsed.values()):
        # Parsing numbers one by one takes ten times as long. Strings may be large, such as images.
        sizes = [tf.TensorShape(one.shape).num_elements() * tf.as_dtype(one.dtype).size for one in parsed.values()]
        blocks = records.batch(block_of(sum(sizes), _PARSED))
        return blocks.map(lambda block: tf.io.parse_example(block, parsed), **PARALLEL).unbatch()
    return records.map(lambda record: tf.io.parse_single_example(record, parsed), **PARALLEL)


def _record_feature(name: str, feature: Any) -> Any:
    if hasattr(feature, "_fields"):  # `tf.io` features are named tuples
        return feature
    dtype, shape = dtype_and_shape(name, feature)
    if dtype not in (tf.float32, tf.int64, tf.string) or not tf.TensorShape(shape).is_fully_defined():
        cure = "use float32, int64 or string with a fixed shape, and tf.cast; or a feature of tf.io"
        raise DataError(f"features: a TFRecord has no {dtype.name} of shape {shape} for {name!r}; {cure}")
    return tf.io.FixedLenFeature(shape, dtype)
