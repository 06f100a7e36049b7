"""What a model's datasets give: batches, which are dicts of tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from prototrain.errors import DataError
from prototrain.system.tracebacks import cause


def check_dataset(dataset: Any, name: str) -> tf.data.Dataset:
    """Check what a model's `datasets` returned under a name.

    Raises:
        DataError: it is not a `tf.data.Dataset` whose elements are dicts of tensors, or it is known to be empty.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise DataError(f"datasets() must give a tf.data.Dataset for {name!r}, not {type(dataset).__name__}")
    if not isinstance(dataset.element_spec, dict):
        raise DataError(
            f"each element of dataset {name!r} must be a dict of batched tensors, "
            f"not a {type(dataset.element_spec).__name__}"
        )
    if int(dataset.cardinality()) == 0:
        raise DataError(f"dataset {name!r} is empty")
    return dataset


def batch_size(inputs: Mapping[str, Any]) -> tf.Tensor:
    """The number of examples in a batch: the first dimension of its first tensor."""
    first = next(iter(inputs.values()))
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    return first.dense_shape[0] if isinstance(first, tf.SparseTensor) else tf.shape(first)[0]


def first_batch(iterator: Any) -> dict[str, Any]:
    """Read one batch of the training dataset.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    try:
        for batch in iterator:
            return dict(batch)
    except tf.errors.OpError as error:
        raise DataError(f"reading the training dataset 'trn' failed: {cause(error)}") from error
    raise DataError("the training dataset 'trn' is empty")


def same_batch(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two batches of one dataset are equal in every bit."""
    pairs = zip(_flat(one), _flat(other), strict=True)
    return all(_equal(a, b) for a, b in pairs)


def _flat(batch: Mapping[str, Any]) -> list[Any]:
    return list(tf.nest.flatten(batch, expand_composites=True))


def _equal(a: tf.Tensor, b: tf.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    one, two = a.numpy(), b.numpy()
    # NaN marks what is missing in many datasets, and is not equal to itself.
    return bool((one == two).all()) if a.dtype == tf.string else bool(one.tobytes() == two.tobytes())
