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
