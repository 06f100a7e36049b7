"""Readers of files and of DataFlows. Each returns a `tf.data.Dataset` of dictionaries of *unbatched* tensors.

The model shuffles, batches and maps these datasets. All readers except `dataflow` run Python code only once, up front,
and consist of operations whose position `tf.data` can save. With `shuffle="index"`, the order is a permutation of the
example indices, and the position is a number.

Files may be at URLs, such as ``s3://bucket/trn.csv``. They are downloaded once and cached.
"""

from prototrain.readers.csv_files import csv
from prototrain.readers.flows import dataflow
from prototrain.readers.images import IMAGE_EXTENSIONS, class_names, decode_image, image_files, image_folder
from prototrain.readers.json_files import json_lines
from prototrain.readers.parquet_files import parquet
from prototrain.readers.record_files import tfrecords
from prototrain.readers.tables import Features

__all__ = [
    "IMAGE_EXTENSIONS",
    "Features",
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
