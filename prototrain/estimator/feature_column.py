"""Feature columns, by the names of `tf.feature_column`: which features a canned estimator sees, and in which form.

Keras preprocessing layers do the work, and the numbers are those of `tf.feature_column`. A missing value is an empty
text or -1, as there; sparse and ragged tensors will do too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError, StorageError
from prototrain.estimator.columns.base import Categorical, Column, as_layer_name, check_combiner
from prototrain.estimator.columns.dense import Embedded, Indicator, SharedEmbedded, Table
from prototrain.estimator.columns.layers import adopted, categorical, input_layer
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


def numeric_column(
    key: str,
    shape: int | Sequence[int] = (1,),
    default_value: Any = None,
    dtype: tf.DType = tf.float32,
    normalizer_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> Numeric:
    """Numbers as they are.

    Args:
        key: of the feature.
        shape: of the feature in one example.
        default_value: where it is missing in a serialized `tf.train.Example`.
        dtype: there.
        normalizer_fn: from the batch of numbers to another one of the same shape.
    """
    dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
    return Numeric(key, dimensions, default_value, dtype, normalizer_fn)


def bucketized_column(source_column: Numeric, boundaries: Sequence[float]) -> Bucketized:
    """Numbers by the interval that they lie in; each boundary belongs to the interval above it.

    Args:
        source_column: a `numeric_column`.
        boundaries: in ascending order.

    Raises:
        ModelError: they are not, or the column is of another kind.
    """
    source = adopted(source_column)
    if not isinstance(source, Numeric):
        raise ModelError(f"bucketized_column takes a numeric_column, not {type(source).__name__}")
    if list(boundaries) != sorted(set(boundaries)) or not boundaries:
        raise ModelError(f"bucketized_column({source.key!r}): the boundaries must ascend, not {list(boundaries)}")
    return Bucketized(source, tuple(map(float, boundaries)))


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[Any],
    dtype: tf.DType | None = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> Vocabulary:
    """Words, or whole numbers, by their place in a list.

    Args:
        key: of the feature.
        vocabulary_list: the words.
        dtype: of the feature in a serialized `tf.train.Example`; that of the words if None.
        default_value: the place of a word that is not in the list; -1 leaves it out.
        num_oov_buckets: how many places, behind the list, such words are distributed over instead.

    Raises:
        ModelError: there are no words, or both a default and further places are asked for.
    """
    words = tuple(word.item() if hasattr(word, "item") else word for word in vocabulary_list)
    if not words or len(set(words)) < len(words):
        raise ModelError(f"the vocabulary of the column {key!r} must have words, each of them once")
    if num_oov_buckets and default_value != -1:
        raise ModelError(f"the column {key!r} cannot have both num_oov_buckets and a default_value")
    found = tf.string if isinstance(words[0], str | bytes) else tf.int64
    return Vocabulary(key, words, dtype or found, default_value, num_oov_buckets)


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


def categorical_column_with_hash_bucket(key: str, hash_bucket_size: int, dtype: tf.DType = tf.string) -> Hashed:
    """Words, or whole numbers, distributed over so many buckets by a hash.

    Args:
        key: of the feature.
        hash_bucket_size: how many buckets there are.
        dtype: of the feature in a serialized `tf.train.Example`.
    """
    return Hashed(key, hash_bucket_size, dtype)


def categorical_column_with_identity(key: str, num_buckets: int, default_value: int | None = None) -> Identity:
    """Whole numbers from 0 as they are.

    Args:
        key: of the feature.
        num_buckets: how many there are.
        default_value: in place of others; None makes them an error while training.
    """
    return Identity(key, num_buckets, default_value)


def crossed_column(keys: Sequence[Any], hash_bucket_size: int, hash_key: int | None = None) -> Crossed:
    """Which values come together, distributed over so many buckets by a hash.

    Args:
        keys: at least two: keys of features, bucketized columns, or categorical ones that are neither hashed nor
            weighted.
        hash_bucket_size: how many buckets there are.
        hash_key: another one gives another hash.

    Raises:
        ModelError: there is only one, or one that is of another kind.
    """
    parts = tuple(key if isinstance(key, str) else adopted(key) for key in keys)
    if isinstance(keys, str) or len(parts) < 2:
        raise ModelError(f"crossed_column needs at least two keys, not {keys!r}")
    for part in parts:
        if isinstance(part, Hashed | Weighted) or not isinstance(part, str | Bucketized | Categorical):
            raise ModelError(
                f"crossed_column takes keys of features, bucketized columns and categorical ones that are not "
                f"weighted and not hashed, not {type(part).__name__}"
            )
    return Crossed(parts, hash_bucket_size, hash_key)


def indicator_column(categorical_column: Any) -> Indicator:
    """A categorical column as one number for each value: how often it is there."""
    return Indicator(categorical(categorical_column, "indicator_column"))


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> Embedded:
    """A categorical column as vectors that are learned.

    Args:
        categorical_column: a categorical column.
        dimension: of the vectors.
        combiner: how those of one example are put together: "mean", "sqrtn" or "sum".
        initializer: of Keras; by default a truncated normal one with a standard deviation of 1/sqrt(dimension).
        max_norm: longer vectors are shortened to this L2 norm.
        trainable: whether they are learned.

    Raises:
        ModelError: the column is of another kind, or there is no such combiner.
    """
    check_combiner(combiner)
    source = categorical(categorical_column, "embedding_column")
    return Embedded(source, dimension, combiner, initializer, max_norm, trainable)


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
    table = Table(as_layer_name(name), sources[0].size, dimension, initializer, trainable)
    return [SharedEmbedded(source, table, combiner, max_norm) for source in sources]


shared_embedding_columns = shared_embeddings
"""As `shared_embeddings`, by the name of TensorFlow 1."""


def weighted_categorical_column(
    categorical_column: Any, weight_feature_key: str, dtype: tf.DType = tf.float32
) -> Weighted:
    """A categorical column whose values count as much as another feature says.

    Args:
        categorical_column: a categorical column.
        weight_feature_key: the feature that has a number for each value.
        dtype: of these in a serialized `tf.train.Example`.

    Raises:
        ModelError: the column is of another kind, or the numbers would be texts.
    """
    if dtype == tf.string:
        raise ModelError(f"weighted_categorical_column: the weights {weight_feature_key!r} must be numbers")
    source = categorical(categorical_column, "weighted_categorical_column")
    return Weighted(source, weight_feature_key, dtype)


def make_parse_example_spec(feature_columns: Iterable[Column]) -> dict[str, Any]:
    """What `tf.io.parse_example` takes, to read the features of these columns.

    Raises:
        ModelError: two columns read one feature in different ways.
    """
    spec: dict[str, Any] = {}
    for column in map(adopted, feature_columns):
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
