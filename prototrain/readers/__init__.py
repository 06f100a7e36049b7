"""Readers of files, and of a DataFlow: each returns a `tf.data.Dataset` of dictionaries of *unbatched* tensors.

The model shuffles, batches and maps them. All but `dataflow` are made of operations whose position `tf.data` can save:
everything that needs Python happens once, up front. With `shuffle="index"` the order is a permutation of the examples'
numbers, and the position is one of these numbers.

Files may lie at URLs, such as ``s3://bucket/trn.csv``; they are downloaded once and kept.
"""

from prototrain.readers.csv_files import csv
from prototrain.readers.flows import dataflow
from prototrain.readers.images import IMAGE_EXTENSIONS, class_names, decode_image, image_files, image_folder
from prototrain.readers.json_files import json_lines
from prototrain.readers.parquet_files import parquet
from prototrain.readers.paths import PathLike
from prototrain.readers.record_files import tfrecords
from prototrain.readers.tables import Features

__all__ = [
    "IMAGE_EXTENSIONS",
    "Features",
    "PathLike",
    "class_names",
    "csv",
    "dataflow",
    "decode_image",
    "image_files",
    "image_folder",
    "json_lines",
    "parquet",
    "tfrecords",
]
