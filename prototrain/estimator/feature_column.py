"""Feature columns with the names and the results of `tf.feature_column`.

Keras preprocessing layers compute the columns. As in `tf.feature_column`, a missing value is an empty string or -1.
Features may be dense, sparse or ragged tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.columns import (
    Bucketized,
    Column,
    Crossed,
    Embedded,
    Hashed,
    Identity,
    Indicator,
    Numeric,
    Vocabulary,
    checked,
    input_layer,
)

__all__ = [
    "bucketized_column",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_vocabulary_list",
    "crossed_column",
    "embedding_column",
    "indicator_column",
    "input_layer",
    "make_parse_example_spec",
    "numeric_column",
]

numeric_column = Numeric
bucketized_column = Bucketized
categorical_column_with_vocabulary_list = Vocabulary
categorical_column_with_hash_bucket = Hashed
categorical_column_with_identity = Identity
crossed_column = Crossed
indicator_column = Indicator
embedding_column = Embedded


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str | Path,
    vocabulary_size: int | None = None,
    dtype: tf.DType = tf.string,
    default_value: int | None = None,
    num_oov_buckets: int = 0,
) -> Vocabulary:
    """Return a categorical column with the vocabulary of a file.

    The file is read when the column is created.

    Args:
        key: the name of the feature.
        vocabulary_file: the path of a UTF-8 file with one word per line.
        vocabulary_size: the number of lines to use, or None for all.
        dtype, default_value, num_oov_buckets: see `categorical_column_with_vocabulary_list`.

    Raises:
        ModelError: the file cannot be read, or has fewer than `vocabulary_size` words.
    """
    try:
        text = Path(vocabulary_file).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"the vocabulary of {key!r} cannot be read from {vocabulary_file}: {error}") from error
    # Not splitlines(), which also splits at the line separators of Unicode; TensorFlow reads such a line as one word.
    lines = text.replace("\r", "").removesuffix("\n").split("\n") if text else []
    if vocabulary_size is not None and vocabulary_size > len(lines):
        raise ModelError(f"{vocabulary_file} has {len(lines)} words, fewer than the vocabulary_size {vocabulary_size}")
    words = [word if dtype == tf.string else int(word) for word in lines[:vocabulary_size]]
    default = -1 if default_value is None else default_value
    return categorical_column_with_vocabulary_list(key, words, dtype, default, num_oov_buckets)


def make_parse_example_spec(feature_columns: Iterable[Column]) -> dict[str, Any]:
    """Return the `tf.io.parse_example` specification of the columns' features.

    Raises:
        ModelError: two columns parse the same feature differently.
    """
    spec: dict[str, Any] = {}
    for column in map(checked, feature_columns):
        for key, feature in column.parse_spec.items():
            if spec.setdefault(key, feature) != feature:
                raise ModelError(f"two columns read the feature {key!r} in different ways: {spec[key]} and {feature}")
    return spec
