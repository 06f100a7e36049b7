"""Adapters from arrays, `PyDataset`, generators, DataFlow and Grain to `tf.data`."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.data.batches import by_path
from prototrain.errors import DataError
from prototrain.readers.flows import dataflow, dataset_of_points, named_parts
from prototrain.readers.order import ABOUT, pass_being_made

GRAIN = "grain_for_prototrain"
"""An attribute of a dataset's Python object: the Grain dataset that it reads."""
_GRAIN_THREADS = 8  # for reading a `MapDataset`
_BATCH = "a batch of the data"  # in error messages
_passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def as_datasets(given: Any, config: Mapping[str, Any]) -> Any:
    """Convert the values that a model's `datasets` returns to `tf.data` datasets.

    These are arrays (a dict, or a tuple of up to three) whose rows are examples, a `keras.utils.PyDataset`, a Grain
    `MapDataset` or `IterDataset` of batches, and a tensorpack DataFlow of batches, recognized by its `reset_state`.
    "trn" is reshuffled in each pass if it is of arrays or a `PyDataset`. A tuple becomes a dict with the keys "x", "y"
    and "sample_weight"; a single array becomes "x". Any other value is returned unchanged.
    """
    if not isinstance(given, dict):
        return given
    return {name: _as_dataset(value, name, config) for name, value in given.items()}


def _as_dataset(value: Any, name: str, config: Mapping[str, Any]) -> Any:
    if isinstance(value, keras.utils.PyDataset):
        dataset = from_py_dataset(value, shuffle=name == "trn", ends_epochs=name == "trn")
        return dataset if isinstance(dataset.element_spec, dict) else dataset.map(lambda *parts: named_parts(parts))
    grain = sys.modules.get("grain")  # whoever made a Grain dataset has imported it
    if grain is not None and isinstance(value, (grain.MapDataset, grain.IterDataset)):
        return _from_grain(value)
    if hasattr(value, "reset_state") and isinstance(value, Iterable):
        return dataflow(value, batched=True)
    if isinstance(value, Mapping | tuple | np.ndarray):
        return _from_arrays(named_parts(value), name, config["model.batch_size"])
    return value


def _from_arrays(arrays: dict[str, Any], name: str, batch_size: int) -> tf.data.Dataset:
    """Return batches of arrays' rows; those of "trn" are shuffled, and have full batches only."""
    training = name == "trn"
    try:
        converted = _converted(arrays)
    except DataError as error:
        raise DataError(f"dataset {name!r}: {error}") from error
    lengths = {path: int(array.shape[0]) for path, array in by_path(converted).items()}
    number = min(lengths.values(), default=0)
    if number == 0 or number < max(lengths.values()):
        found = ", ".join(f"{path!r}: {length}" for path, length in lengths.items()) or "no arrays"
        raise DataError(f"the arrays of dataset {name!r} must be of one length, at least 1; they are of {found}")
    if training and number < batch_size:
        raise DataError(f"dataset {name!r} has {number} examples, too few for a model.batch_size of {batch_size}")
    return batches_of_rows(converted, number, batch_size, shuffle=training, drop_remainder=training)


def batches_of_rows(
    arrays: Any, length: int, batch_size: int, *, shuffle: bool, drop_remainder: bool = False
) -> tf.data.Dataset:
    """Return a dataset of batches of the rows of a structure of arrays; a shuffle is over row numbers."""
    if any(isinstance(array, tf.SparseTensor) for array in tf.nest.flatten(arrays)):
        raise DataError("a sparse tensor has no rows to take: give a tf.data.Dataset of it")
    rows = tf.data.Dataset.range(length)
    rows = (rows.shuffle(length) if shuffle else rows).batch(batch_size, drop_remainder=drop_remainder)
    with tf.device("CPU:0"):  # on a GPU, every batch would be copied back
        whole = tf.data.Dataset.from_tensors(arrays).repeat()
    batches = tf.data.Dataset.zip(whole, rows)
    return batches.map(lambda whole, rows: tf.nest.map_structure(lambda array: tf.gather(array, rows), whole))


def as_array(value: Any) -> Any:
    """Convert a value to an array; floats other than bfloat16 get the dtype `keras.config.floatx()`."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    try:
        array = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
    except ValueError as error:  # nested lists of several lengths
        raise DataError(f"a {type(value).__name__} is no array: {error}") from error
    is_object = array.dtype == object and not all(isinstance(item, str | bytes) for item in array.flat)
    if array.dtype.kind in "Mm" or is_object:
        raise DataError(f"an array of {array.dtype} cannot become a tensor; convert it to numbers or text")
    if array.ndim == 0:
        raise DataError(f"the data must be arrays of one length, not {type(value).__name__}")
    is_float = np.issubdtype(array.dtype, np.floating)
    return array.astype(keras.config.floatx()) if is_float and array.dtype.name != "bfloat16" else array


def _converted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _converted(inside) for name, inside in value.items()}
    return tuple(map(_converted, value)) if isinstance(value, tuple) else as_array(value)


def from_py_dataset(data: keras.utils.PyDataset, *, shuffle: bool, ends_epochs: bool) -> tf.data.Dataset:
    """Return the batches of one pass over a `PyDataset`, shuffled in an order that depends on the run's seed and pass.

    With `ends_epochs`, `on_epoch_end` and `on_epoch_begin` are called before each pass, including the first, under
    seeds. A resumed run repeats the calls of all earlier passes.
    """
    number, length, seed = pass_being_made(), data.num_batches, random.getrandbits(31)
    for done in range(_passes.get(data, 0), number + 1 if ends_epochs else 0):
        random.seed(seed + done)
        np.random.seed(seed + done)
        data.on_epoch_end()
        data.on_epoch_begin()
        _passes[data] = done + 1
    order = list(range(length or 0))
    if shuffle:
        random.Random(seed + number).shuffle(order)

    def batches() -> Iterator[Any]:
        return (_as_tuple(data[index]) for index in (iter(range(2**63)) if length is None else order))

    cardinality = tf.data.INFINITE_CARDINALITY if length is None else length
    return dataset_of_points(batches, _BATCH, batched=True).apply(tf.data.experimental.assert_cardinality(cardinality))


def _from_grain(given: Any) -> tf.data.Dataset:
    """Return the batches of a Grain dataset; the attribute `GRAIN` is for `GrainIterator`."""
    dataset = dataset_of_points(lambda: map(named_batch, read_grain(given)), _BATCH, batched=True)
    stages = _grain_stages(given)
    if hasattr(given, "__len__") and not any("Filter" in stage for stage in stages):  # a filter has no exact length
        length = tf.data.INFINITE_CARDINALITY if len(given) >= sys.maxsize else len(given)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    setattr(dataset, GRAIN, given)
    setattr(dataset, ABOUT, (stages, []))
    return dataset


def _grain_stages(given: Any) -> list[str]:
    """Return the names of the stages of a Grain dataset, source first."""
    return [*(name for parent in given.parents for name in _grain_stages(parent)), f"grain {type(given).__name__}"]


def read_grain(dataset: Any) -> Any:
    """Return an `IterDataset` with a short buffer: Grain's default holds 500 batches of a `MapDataset`."""
    if not hasattr(dataset, "to_iter_dataset"):
        return dataset
    options = sys.modules["grain"].ReadOptions(num_threads=_GRAIN_THREADS, prefetch_buffer_size=_GRAIN_THREADS)
    return dataset.to_iter_dataset(options)


def from_generator(make: Callable[[], Iterator[Any]]) -> tf.data.Dataset:
    """Return a dataset of the batches of a generator; `make` is called for each pass."""
    return dataset_of_points(lambda: map(_as_tuple, make()), _BATCH, batched=True)


def named_batch(batch: Any) -> dict[str, Any]:
    """Return a batch of a Grain dataset as a dict."""
    return dict(_as_tuple(named_parts(batch)))


def _as_tuple(batch: Any) -> Any:
    """Convert a list to a tuple, since tf.data would make one tensor of it, and float64 to Keras's `floatx`."""

    def as_float(value: Any) -> Any:
        if tf.is_tensor(value):
            return value
        array = np.asarray(value)
        return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array

    return keras.tree.map_structure(as_float, tuple(batch) if isinstance(batch, list) else batch)
