"""Features as columns read them: dense, with a dimension of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError


def raw(features: Mapping[str, Any], key: str, missing: Any = None) -> tf.Tensor:
    """A feature with a dimension of values.

    Args:
        features: by name.
        key: of the feature.
        missing: what stands where a sparse or ragged one has no value; an empty text or -1 if None.

    Raises:
        ModelError: there is no such feature.
    """
    if not isinstance(features, Mapping) or key not in features:
        there = ", ".join(features) if isinstance(features, Mapping) else type(features).__name__
        raise ModelError(f"there is no feature {key!r} for its column; input_fn gives {there}")
    value = features[key]
    if missing is None or value.dtype == tf.string:
        missing = "" if value.dtype == tf.string else -1
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value, default_value=tf.constant(missing, value.dtype))
    elif isinstance(value, tf.RaggedTensor):
        value = value.to_tensor(default_value=tf.constant(missing, value.dtype))
    value = tf.convert_to_tensor(value)
    return value[:, tf.newaxis] if value.shape.rank == 1 else value


def discrete(features: Mapping[str, Any], key: str) -> tf.Tensor:
    """A feature of texts or whole numbers, these as int64.

    Raises:
        ModelError: there is none, or it is of another kind.
    """
    value = raw(features, key)
    if value.dtype != tf.string and not value.dtype.is_integer:
        raise ModelError(f"the feature {key!r} must be texts or whole numbers for its column, not {value.dtype.name}")
    return value if value.dtype == tf.string else tf.cast(value, tf.int64)


def is_missing(values: tf.Tensor) -> tf.Tensor:
    """Where there is no value."""
    return values == ("" if values.dtype == tf.string else tf.constant(-1, values.dtype))
