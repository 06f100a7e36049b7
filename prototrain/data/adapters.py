"""Adapters that make `tf.data` datasets of arrays, `PyDataset`, generators, DataFlow and Grain."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.data.batches import by_path
from prototrain.data.grain import is_grain, mark_grain, read_grain
from prototrain.errors import DataError
from prototrain.readers.flows import PARTS, dataflow, named_parts
from prototrain.readers.order import pass_being_made

__all__ = ["PARTS", "as_array", "as_datasets", "from_generator", "from_py_dataset"]

_LOOKED_AT = 2  # batches, to see which of their sizes vary
_passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def as_datasets(given: Any, config: Mapping[str, Any]) -> Any:
    """Make datasets of what a model's `datasets` has returned; other kinds than these are left as they are.

    - arrays: a dict of them, or a tuple of up to three, ``(x, y, sample_weight)``. Their rows are the examples; those
      of "trn" are reshuffled in each pass and fill batches, those of others come in their order;
    - a `keras.utils.PyDataset`; the batches of "trn" come in another order in each pass, as in `fit`;
    - a Grain `MapDataset` or `IterDataset` of batches;
    - a DataFlow of tensorpack's, of batches: it has `reset_state`.

    A batch that is a tuple becomes a dict as a tuple of arrays does, and one that is a single array becomes its "x".

    Args:
        given: what was returned, by name.
        config: its ``model.batch_size`` is that of batches made of arrays.

    Raises:
        DataError: one cannot be read, or is empty.
    """
    if not isinstance(given, dict):
        return given
    return {name: _as_dataset(value, name, config) for name, value in given.items()}


def _as_dataset(value: Any, name: str, config: Mapping[str, Any]) -> Any:
    training = name == "trn"
    if isinstance(value, keras.utils.PyDataset):
        dataset = from_py_dataset(value, shuffle=training, ends_epochs=training)
        return dataset if isinstance(dataset.element_spec, dict) else dataset.map(lambda *parts: named_parts(parts))
    if is_grain(value):

        def named(batch: Any) -> dict[str, Any]:
            return dict(_as_tuple(named_parts(batch)))

        return mark_grain(_dataset_of(lambda: map(named, read_grain(value))), value, named)
    if hasattr(value, "reset_state") and isinstance(value, Iterable):
        return dataflow(value, batched=True)
    if isinstance(value, Mapping | tuple):
        return from_arrays(named_parts(value), name, config["model.batch_size"], training=training)
    return value


def from_arrays(arrays: dict[str, Any], name: str, batch_size: int, *, training: bool) -> tf.data.Dataset:
    """Batches of examples, which are the rows of arrays.

    In `training` they are reshuffled in each pass, and a last batch that is not full is left out. The numbers of the
    rows are shuffled, and saved with the position: eight bytes for each that is left.
    """
    converted = _converted(arrays)
    lengths = {path: _length(array) for path, array in by_path(converted).items()}
    if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
        found = ", ".join(f"{path!r}: {length}" for path, length in lengths.items()) or "no arrays"
        raise DataError(f"the arrays of dataset {name!r} must be of one length; they are of {found}")
    number = next(iter(lengths.values()))
    rows = tf.data.Dataset.range(number)
    if training:
        if number < batch_size:
            raise DataError(f"dataset {name!r} has {number} examples, too few for a model.batch_size of {batch_size}")
        rows = rows.shuffle(number)
    with tf.device("CPU:0"):  # or the data would go to the GPU now and come back for every batch
        whole = tf.data.Dataset.from_tensors(converted).repeat()

    def taken(rows: tf.Tensor, whole: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = tf.nest.map_structure(lambda array: tf.gather(array, rows), whole)
        return found

    batches = tf.data.Dataset.zip(rows.batch(batch_size, drop_remainder=training), whole)
    return batches.map(taken).prefetch(2)


def as_array(value: Any) -> Any:
    """An array as Keras takes it: a wider float becomes one of its default kind."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    array = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
    if array.ndim == 0:
        raise DataError(f"the data must be arrays of one length, not {type(value).__name__}")
    is_float = np.issubdtype(array.dtype, np.floating)
    return array.astype(keras.config.floatx()) if is_float and array.dtype.name != "bfloat16" else array


def _converted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _converted(inside) for name, inside in value.items()}
    return tuple(map(_converted, value)) if isinstance(value, tuple) else as_array(value)


def _length(array: Any) -> int:
    if isinstance(array, tf.SparseTensor):
        raise DataError("a sparse tensor has no rows to take: give a tf.data.Dataset of it")
    return int(array.nrows()) if isinstance(array, tf.RaggedTensor) else len(array)


def from_py_dataset(data: keras.utils.PyDataset, *, shuffle: bool, ends_epochs: bool) -> tf.data.Dataset:
    """The batches of one pass over a `PyDataset`.

    Args:
        data: its `workers` are not used.
        shuffle: whether the batches come in an order that depends on the run's seed and the pass.
        ends_epochs: whether to call its `on_epoch_end` and `on_epoch_begin` before each pass, as `fit` does, also
            before the first. A resumed run makes the calls of all passes before. NumPy's and Python's global generators
            are seeded for each.
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
    return _dataset_of(batches).apply(tf.data.experimental.assert_cardinality(cardinality))


def from_generator(make: Callable[[], Iterator[Any]]) -> tf.data.Dataset:
    """The batches that a generator gives; `make` makes it, for each pass."""
    return _dataset_of(lambda: map(_as_tuple, make()))


def _dataset_of(batches: Callable[[], Iterator[Any]]) -> tf.data.Dataset:
    """A dataset of batches that Python code gives.

    The first ones tell what the others are like: sizes in which they differ are open, and so is the number of examples.
    """
    specs = [keras.tree.map_structure(_spec, batch) for batch in islice(batches(), _LOOKED_AT)]
    if not specs:
        raise DataError("the data is empty: it gave no batch")
    signature = keras.tree.map_structure(lambda *some: _common(some), *specs)
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def _spec(value: Any) -> tf.TypeSpec:
    spec = tf.type_spec_from_value(value if tf.is_tensor(value) else tf.convert_to_tensor(value))
    is_dense = isinstance(spec, tf.TensorSpec) and spec.shape.rank
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if is_dense else spec


def _common(specs: tuple[Any, ...]) -> Any:
    found = specs[0].most_specific_common_supertype(specs[1:])
    if found is None:
        raise DataError(f"the batches are not alike: {' and '.join(map(str, specs))}")
    return found


def _as_tuple(batch: Any) -> Any:
    """A batch with tuples for lists, which tf.data would take for one tensor, and floats as `fit` takes them."""

    def as_float(value: Any) -> Any:
        if tf.is_tensor(value):
            return value
        array = np.asarray(value)
        return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array

    return keras.tree.map_structure(as_float, tuple(batch) if isinstance(batch, list) else batch)
