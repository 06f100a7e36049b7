"""Feature columns, by the names of `tf.feature_column`: which features a canned estimator sees, and in which form.

Keras preprocessing layers do the work, and the numbers are those of `tf.feature_column`. A missing value is an empty
text or -1, as there; sparse and ragged tensors will do too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError, StorageError
from prototrain.estimator.columns.base import Column, categorical, check_combiner, checked, input_layer, layer_name
from prototrain.estimator.columns.dense import Embedded, Indicator, SharedEmbedded, Table
from prototrain.estimator.columns.several import Crossed, Weighted
from prototrain.estimator.columns.single import Bucketized, Hashed, Identity, Numeric, Vocabulary
from prototrain.system.storage import downloaded
from prototrain.system.tracebacks import first_line
from prototrain.system.urls import local_path, url_of

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
    "shared_embedding_columns",
    "shared_embeddings",
    "weighted_categorical_column",
]


numeric_column = Numeric
bucketized_column = Bucketized
categorical_column_with_vocabulary_list = Vocabulary
categorical_column_with_hash_bucket = Hashed
categorical_column_with_identity = Identity
crossed_column = Crossed
weighted_categorical_column = Weighted
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
    """Words by their line in a file, which is read now.

    Args:
        key: of the feature.
        vocabulary_file: has one word in each line; a path or a URL.
        vocabulary_size: how many lines count; all if None.
        dtype, default_value, num_oov_buckets: see `categorical_column_with_vocabulary_list`.

    Raises:
        ModelError: the file cannot be read, or has fewer words.
    """
    try:
        file = local_path(vocabulary_file) if url_of(vocabulary_file) is None else downloaded(str(vocabulary_file))
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, StorageError) as error:
        raise ModelError(
            f"the vocabulary of the column {key!r} cannot be read from {vocabulary_file}: {first_line(error)}"
        ) from error
    if vocabulary_size is not None and vocabulary_size > len(lines):
        raise ModelError(f"{vocabulary_file} has {len(lines)} words, fewer than the vocabulary_size {vocabulary_size}")
    words = [word if dtype == tf.string else int(word) for word in lines[:vocabulary_size]]
    default = -1 if default_value is None else default_value
    return categorical_column_with_vocabulary_list(key, words, dtype, default, num_oov_buckets)


def shared_embeddings(
    categorical_columns: Iterable[Any],
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    shared_embedding_collection_name: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> list[SharedEmbedded]:
    """Categorical columns of the same values as vectors that are learned together.

    Args:
        categorical_columns: of one size each.
        dimension, combiner, initializer, max_norm, trainable: see `embedding_column`.
        shared_embedding_collection_name: of the layer that has the vectors; by default made of the columns' names.

    Returns:
        a column for each.

    Raises:
        ModelError: there are none, a column is of another kind, their sizes differ, or there is no such combiner.
    """
    check_combiner(combiner)
    sources = [categorical(one, "shared_embeddings") for one in categorical_columns]
    sizes = {f"{source.name} {source.size}" for source in sources}
    if len({source.size for source in sources}) != 1:
        raise ModelError(f"shared_embeddings takes columns of one size, not {', '.join(sorted(sizes)) or 'none'}")
    name = shared_embedding_collection_name or "_".join(sorted(source.name for source in sources)) + "_shared_embedding"
    table = Table(layer_name(name), sources[0].size, dimension, initializer, trainable)
    return [SharedEmbedded(source, table, combiner, max_norm) for source in sources]


shared_embedding_columns = shared_embeddings
"""As `shared_embeddings`, by the name of TensorFlow 1."""


def make_parse_example_spec(feature_columns: Iterable[Column]) -> dict[str, Any]:
    """What `tf.io.parse_example` takes, to read the features of these columns.

    Raises:
        ModelError: two columns read one feature in different ways.
    """
    spec: dict[str, Any] = {}
    for column in map(checked, feature_columns):
        for key, feature in column.parse_spec.items():
            if spec.setdefault(key, feature) != feature:
                raise ModelError(f"two columns read the feature {key!r} in different ways: {spec[key]} and {feature}")
    return spec


def __getattr__(name: str) -> Any:
    if name == "linear_model":
        raise ModelError("feature_column has no linear_model: LinearClassifier and LinearRegressor take the columns")
    if name in ("DenseFeatures", "SequenceFeatures") or name.startswith("sequence_"):
        raise ModelError(
            f"feature_column has no {name}: input_layer(features, columns) gives what DenseFeatures gave; sequences "
            "are ragged features for keras.layers.StringLookup, Embedding and a recurrent layer"
        )
    raise AttributeError(f"module 'prototrain.estimator.feature_column' has no attribute {name!r}")
