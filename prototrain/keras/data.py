"""Conversion of the data that `keras.Model.fit` takes to datasets with dict batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from prototrain.data.adapters import as_array, batches_of_rows, from_generator, from_py_dataset
from prototrain.errors import DataError
from prototrain.readers.flows import PARTS

Data: TypeAlias = Any
"""A `tf.data.Dataset`, a `keras.utils.PyDataset`, arrays (x, (x, y) or (x, y, sample_weight)), or a function that
returns one of these or a generator."""


class Element:
    """Names the parts of a dataset's elements.

    ``(x, y, sample_weight)`` becomes ``{"x": ..., "y": ..., "sample_weight": ...}``. The leaves of a nested structure
    are named by their paths, such as ``x/age``. The parts of a tuple of more than three are named by number; only a
    custom `train_step` can use them.

    Args:
        spec: the element specification of the user's dataset.

    Attributes:
        names: the names of the leaves.
    """

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        parts = spec if isinstance(spec, tuple) else (spec,)
        roots: Any = PARTS if len(parts) <= len(PARTS) else range(len(parts))
        self.names = [path for root, part in zip(roots, parts, strict=False) for path in leaves_by_path(root, part)]

    def named(self, *element: Any) -> dict[str, Any]:
        """Return the tensors of an element by name."""
        leaves = keras.tree.flatten(element if isinstance(self._spec, tuple) else element[0])
        return dict(zip(self.names, leaves, strict=True))

    def as_given(self, inputs: Mapping[str, Any]) -> Any:
        """Return a batch in the structure of the user's dataset, with None for missing leaves."""
        return keras.tree.pack_sequence_as(self._spec, [inputs.get(name) for name in self.names])

    def unpacked(self, inputs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Return x, y and sample_weight of a batch, with None for missing parts."""
        x, *others = keras.utils.unpack_x_y_sample_weight(self.as_given(inputs))
        y, sample_weight = (None if any(leaf is None for leaf in keras.tree.flatten(part)) else part for part in others)
        return x, y, sample_weight


def leaves_by_path(root: object, structure: Any) -> dict[str, Any]:
    """Return the leaves of a nested structure by their paths."""
    return {"/".join(map(str, (root, *path))): leaf for path, leaf in keras.tree.flatten_with_path(structure)}


def as_dataset(
    data: Data,
    *,
    batch_size: int | None = None,
    training: bool = True,
    shuffle: bool = False,
    class_weight: Mapping[int, float] | None = None,
) -> tf.data.Dataset:
    """Return a dataset of batches; raises a DataError for other types and for arguments that do not apply.

    `batch_size` is for arrays, 32 if None. `shuffle` is for arrays and for the batches of a `PyDataset`. Classes that
    are not in `class_weight` have the weight 1.
    """
    function = None if is_batched(data) or not callable(data) else data
    dataset = data if function is None else function()
    if not is_batched(dataset):
        what = "data" if training else "validation data"
        dataset = _from_arrays(what, dataset, 32 if batch_size is None else batch_size, shuffle=shuffle)
    elif training and batch_size is not None:
        raise DataError("batch_size is for arrays: a dataset, a PyDataset or a generator gives batches already")
    elif isinstance(dataset, keras.utils.PyDataset):
        dataset = from_py_dataset(dataset, shuffle=shuffle, ends_epochs=training)
    elif isinstance(dataset, Iterator):
        if function is None:
            kind = type(dataset).__name__
            raise DataError(f"a {kind} can be read only once: give the function that makes it, without calling it")
        dataset = from_generator(function)
    if class_weight is None:
        return dataset
    if not isinstance(class_weight, Mapping):
        raise DataError(f"class_weight must be a dict from class numbers to weights, not {class_weight!r}")
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) != 2 or keras.tree.is_nested(spec[1]):
        raise DataError("class_weight is for data of (x, y) with one tensor of labels and no sample_weight")
    return dataset.map(partial(_with_weights, class_weight))


def is_batched(data: Data) -> bool:
    """Return whether data is already batched: a dataset, a `PyDataset` or a generator."""
    return isinstance(data, tf.data.Dataset | keras.utils.PyDataset | Iterator)


def split_data(x: Any, y: Any, sample_weight: Any, validation_split: float) -> tuple[Data, Data | None]:
    """Split the data of `fit` into training data and validation data, which is taken from the end, or None.

    Raises:
        DataError: an argument for arrays is combined with other data, or a part of the split is empty.
    """
    if callable(x) or is_batched(x):
        if y is not None or sample_weight is not None or validation_split:
            raise DataError(f"y, sample_weight and validation_split are for arrays; x is a {type(x).__name__}")
        return x, None
    data = (x, y, sample_weight) if sample_weight is not None else (x,) if y is None else (x, y)
    if not validation_split:
        return data, None
    size = len(next(part for part in keras.tree.flatten(data) if part is not None))
    at = int(size * (1 - validation_split))
    if not 0 < at < size:
        raise DataError(f"validation_split={validation_split} leaves one side of {size} examples empty")
    first, last = (
        keras.tree.map_structure(lambda part: None if part is None else part[some], data)  # noqa: B023
        for some in (slice(at), slice(at, None))
    )
    return first, last


def _from_arrays(what: str, data: Any, batch_size: int, *, shuffle: bool) -> tf.data.Dataset:
    parts = data if isinstance(data, tuple) else (data,)
    arrays = keras.tree.map_structure(lambda part: None if part is None else as_array(part), parts)
    sizes = [array.shape[0] for array in keras.tree.flatten(arrays) if array is not None]
    if not sizes or len(set(sizes)) > 1 or len(arrays) > len(PARTS):
        expected = "a tf.data.Dataset, a keras.utils.PyDataset, a generator function, or one to three arrays"
        raise DataError(f"the {what} must be {expected}, not a {type(data).__name__} of lengths {sizes}")
    if sizes[0] == 0 or batch_size < 1:
        raise DataError(f"there are {sizes[0]} examples in batches of {batch_size}; both must be at least 1")
    while arrays[-1] is None:
        arrays = arrays[:-1]
    # tf.data would convert a list to one tensor, and take an x of several arrays without y for (x, y).
    arrays = keras.tree.traverse(lambda part: tuple(part) if isinstance(part, list) else None, arrays, top_down=False)
    is_array = len(arrays) == 1 and not isinstance(arrays[0], tuple)
    return batches_of_rows(arrays[0] if is_array else arrays, sizes[0], batch_size, shuffle=shuffle)


def _with_weights(class_weight: Mapping[int, float], x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Add the sample weights of `class_weight` to a batch (x, y)."""
    if y.shape.rank is None or y.shape.rank == 1 or y.shape[-1] == 1:
        y = tf.squeeze(y, -1) if y.shape.rank not in (None, 1) else y
        label = tf.cast(tf.round(tf.cast(y, tf.float32)), tf.int64)
    else:
        label = tf.argmax(y, -1)  # one-hot
    weight = tf.ones_like(label, tf.float32)
    for number, value in class_weight.items():
        weight = tf.where(label == int(number), tf.constant(float(value)), weight)
    return x, y, weight
