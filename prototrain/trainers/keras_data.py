"""What `fit` takes as data, as datasets whose batches are dicts: the parts of a batch get names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from prototrain.data.adapters import PARTS, as_array, from_generator, from_py_dataset
from prototrain.errors import DataError

Data: TypeAlias = Any
"""A `tf.data.Dataset`, arrays (x, (x, y) or (x, y, sample_weight)), a `keras.utils.PyDataset`, a generator, or a
function that returns one of these."""


class Element:
    """How the elements of a dataset are named, and put together again.

    ``(x, y, sample_weight)``, of which the last may be missing, becomes ``{"x": ..., "y": ..., "sample_weight": ...}``;
    a part of a nested one is named by its path, such as ``x/age``; what else a model's own `train_step` may want is
    named by its path alone.

    Args:
        spec: of the elements, as the user's dataset gives them.
    """

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self._is_one = not isinstance(spec, tuple)
        parts = (spec,) if self._is_one else spec
        self._parts = dict(zip(PARTS, parts, strict=False)) if len(parts) <= len(PARTS) else {}
        roots: dict[Any, Any] = {**self._parts} or dict(enumerate(parts))
        self.names = [name for root, part in roots.items() for name in named(root, part)]

    def named(self, *element: Any) -> dict[str, Any]:
        """The tensors of an element by their names."""
        leaves = keras.tree.flatten(element[0] if self._is_one else element)
        return dict(zip(self.names, leaves, strict=True))

    def as_given(self, inputs: Mapping[str, Any]) -> Any:
        """A batch as the user's dataset gives it."""
        return keras.tree.pack_sequence_as(self._spec, [inputs[name] for name in self.names])

    def unpacked(self, inputs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """What a batch has of x, y and sample_weight; None for what it has not."""
        found = []
        for part in PARTS:
            structure = self._parts.get(part)
            names = [] if structure is None else list(named(part, structure))
            there = bool(names) and (part == "x" or inputs.keys() >= set(names))
            found.append(keras.tree.pack_sequence_as(structure, [inputs[n] for n in names]) if there else None)
        x, y, sample_weight = found
        return x, y, sample_weight

    @property
    def has_labels(self) -> bool:
        """Whether there is a y."""
        return self._parts.get("y") is not None


def named(name: object, structure: Any) -> dict[str, Any]:
    """The leaves of a nested structure by their paths."""
    return {"/".join(map(str, (name, *path))): leaf for path, leaf in keras.tree.flatten_with_path(structure)}


def made(
    data: Data,
    *,
    batch_size: int | None = None,
    training: bool = True,
    shuffle: bool = False,
    class_weight: Mapping[int, float] | None = None,
) -> tf.data.Dataset:
    """A dataset of batches, made of what `fit` takes.

    Args:
        data: see `Data`.
        batch_size: of arrays, 32 if None; for nothing else.
        training: whether it is trained on.
        shuffle: whether arrays, and the batches of a `PyDataset`, come in another order in each pass.
        class_weight: from a class to the weight of its examples, 1 where there is none.

    Raises:
        DataError: it is nothing of that, or the arguments do not fit it.
    """
    function = data if callable(data) and not isinstance(data, keras.utils.PyDataset) else None
    dataset = data if function is None else function()
    if isinstance(dataset, tf.data.Dataset | keras.utils.PyDataset | Iterator):
        if training and batch_size is not None:
            raise DataError("batch_size is for arrays: a dataset, a PyDataset or a generator gives batches already")
        if isinstance(dataset, keras.utils.PyDataset):
            dataset = from_py_dataset(dataset, shuffle=shuffle, ends_epochs=training)
        elif isinstance(dataset, Iterator):
            dataset = from_generator(dataset, function)
    else:
        dataset = _of_arrays(dataset, 32 if batch_size is None else batch_size, shuffle=shuffle)
    return dataset if class_weight is None else dataset.map(_weighing(dataset.element_spec, dict(class_weight)))


def _of_arrays(data: Any, batch_size: int, *, shuffle: bool) -> tf.data.Dataset:
    arrays = keras.tree.map_structure(_array, data if isinstance(data, tuple) else (data,))
    sizes = {name: array.shape[0] for name, array in named("data", arrays).items() if array is not None}
    if batch_size < 1 or set(sizes.values()) == {0}:
        raise DataError(
            "there are no examples" if batch_size > 0 else f"batch_size must be at least 1, not {batch_size}"
        )
    if not sizes or len(set(sizes.values())) > 1 or len(arrays) > len(PARTS):
        raise DataError(
            "the data must be a tf.data.Dataset, a keras.utils.PyDataset, a generator function, or arrays (x, y) or "
            f"(x, y, sample_weight) of one length, not {_outline(data, sizes)}"
        )
    while arrays[-1] is None:
        arrays = arrays[:-1]
    # In tf.data a list is one tensor.
    arrays = keras.tree.traverse(lambda part: tuple(part) if isinstance(part, list) else None, arrays, top_down=False)
    # An x of several arrays alone would be taken for x and y.
    dataset = tf.data.Dataset.from_tensor_slices(
        arrays if len(arrays) > 1 or isinstance(arrays[0], tuple) else arrays[0]
    )
    if shuffle:
        dataset = dataset.shuffle(next(iter(sizes.values())))
    return dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def _array(value: Any) -> Any:
    return None if value is None else as_array(value)


def _outline(data: Any, sizes: Mapping[str, int]) -> str:
    kind = type(data).__name__
    return f"{kind} of lengths {', '.join(map(str, sizes.values()))}" if sizes else kind


def _weighing(spec: Any, class_weight: Mapping[int, float]) -> Callable[..., Any]:
    element = Element(spec)
    if not element.has_labels or len(spec) != 2 or keras.tree.is_nested(spec[1]):
        raise DataError("class_weight is for data of (x, y) with one tensor of labels and no sample_weight")

    def weigh(x: Any, y: Any) -> tuple[Any, Any, Any]:
        is_one_hot = y.shape.rank is not None and y.shape.rank > 1 and y.shape[-1] != 1
        label = tf.argmax(y, -1) if is_one_hot else tf.cast(tf.round(tf.cast(y, tf.float32)), tf.int64)
        label = label if is_one_hot or y.shape.rank == 1 else tf.squeeze(label, -1)
        weight = tf.ones_like(label, tf.float32)
        for number, value in class_weight.items():
            weight = tf.where(label == int(number), tf.constant(float(value)), weight)
        return x, y, weight

    return weigh
