"""Datasets of what Python code gives batch by batch: a `keras.utils.PyDataset`, or a generator."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import pass_being_made

_LOOKED_AT = 2  # batches, to see which of their sizes vary
_KEPT = 64  # batches of a generator, which cannot be asked for them again
_passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def from_py_dataset(data: keras.utils.PyDataset, *, shuffle: bool, ends_epochs: bool) -> tf.data.Dataset:
    """The batches of one pass over a `PyDataset`.

    Args:
        data: its `workers` are not used.
        shuffle: whether the batches come in an order that depends on the run's seed and the pass.
        ends_epochs: whether to call its `on_epoch_end` and `on_epoch_begin` ahead of each pass, as `fit` does: as many
            times as there were passes, where a run goes on in another process, and with NumPy's and Python's global
            generators as the run's seed and the pass say.
    """
    number, length, seed = pass_being_made(), data.num_batches, random.getrandbits(31)
    # `fit` ends an epoch before the first one, too.
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
        endless = iter(range(2**63)) if length is None else iter(order)
        return (as_tuple(data[index]) for index in endless)

    dataset = dataset_of(batches, list(islice(batches(), _LOOKED_AT)))
    cardinality = tf.data.INFINITE_CARDINALITY if length is None else length
    return dataset.apply(tf.data.experimental.assert_cardinality(cardinality))


def from_generator(made: Iterator[Any], again: Callable[[], Any] | None) -> tf.data.Dataset:
    """The batches that a generator gives.

    Args:
        made: the generator, of which nothing was read.
        again: makes it once more, if anything does. Without it the data can be read once only, and a run that goes on
            in another process counts on it giving the same batches.
    """
    if again is None:
        once = _Once(made)
        return dataset_of(once, list(islice(once(), _LOOKED_AT)))
    return dataset_of(lambda: map(as_tuple, again()), list(map(as_tuple, islice(made, _LOOKED_AT))))


@dataclass
class _Read:
    """What was read of a generator: the first batches, and how many in all."""

    first: list[Any] = field(default_factory=list)
    number: int = 0


class _Once:
    """Reads a generator once, however often the first batches are looked at before the training begins.

    Args:
        generator: of which nothing was read but by another one of these.

    Raises:
        DataError: it is another kind of iterator, of which nobody can know what was read.
    """

    _of: ClassVar[weakref.WeakKeyDictionary[Any, _Read]] = weakref.WeakKeyDictionary()

    def __init__(self, generator: Iterator[Any]) -> None:
        self._generator = generator
        try:
            self._read = self._of.setdefault(generator, _Read())
        except TypeError as error:  # there are no weak references to it
            raise DataError(f"a {type(generator).__name__} can be read only once; {_FUNCTION}") from error

    def __call__(self) -> Iterator[Any]:
        if pass_being_made():
            raise DataError(f"the generator ended after {self._read.number} batches; {_FUNCTION}")
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        index, read = 0, self._read
        while True:
            if index < len(read.first):
                batch = read.first[index]
            elif index < read.number:
                raise DataError(f"a generator cannot be read a second time; {_FUNCTION}")
            else:
                batch = next(self._generator, None)
                if batch is None:
                    return
                batch, read.number = as_tuple(batch), read.number + 1
                if read.number <= _KEPT:
                    read.first.append(batch)
            index += 1
            yield batch


_FUNCTION = "give KerasTrainer the function that makes it, which is called anew for each pass"


def dataset_of(batches: Callable[[], Iterator[Any]], first: list[Any]) -> tf.data.Dataset:
    """A dataset of batches that Python code gives.

    Args:
        batches: gives them, anew each time.
        first: the first ones, by which the others are known: sizes in which they differ are open, and so is the first.

    Raises:
        DataError: there are none, or they are not alike.
    """
    if not first:
        raise DataError("the training data is empty: it gave no batch")
    specs = [keras.tree.map_structure(_spec, batch) for batch in first]
    signature = keras.tree.map_structure(lambda *some: _common(some), *specs)
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def _spec(value: Any) -> tf.TypeSpec:
    spec = tf.type_spec_from_value(value if tf.is_tensor(value) else tf.convert_to_tensor(value))
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if isinstance(spec, tf.TensorSpec) else spec


def _common(specs: tuple[Any, ...]) -> Any:
    found = specs[0].most_specific_common_supertype(specs[1:])
    if found is None:
        raise DataError(f"the batches are not alike: {' and '.join(map(str, specs))}")
    return found


def as_tuple(batch: Any) -> Any:
    """A batch with tuples for lists, which tf.data would take for one tensor, and floats as `fit` takes them."""
    batch = tuple(batch) if isinstance(batch, list) else batch
    return keras.tree.map_structure(_as_float, batch)


def _as_float(value: Any) -> Any:
    if tf.is_tensor(value):
        return value
    array = np.asarray(value)
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array
