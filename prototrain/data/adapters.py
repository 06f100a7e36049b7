"""Adapters that make `tf.data` datasets of arrays, `PyDataset`, generators, DataFlow and Grain."""

from __future__ import annotations

import inspect
import json
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from prototrain.data.batches import by_path
from prototrain.data.positions import Meta, Position
from prototrain.data.source import Source
from prototrain.errors import CheckpointError, DataError
from prototrain.readers import dataflow
from prototrain.readers.order import ABOUT, pass_being_made

PARTS = ("x", "y", "sample_weight")
"""What the parts of a tuple are called."""


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
    if isinstance(value, tf.data.Dataset):
        return value
    if isinstance(value, keras.utils.PyDataset):
        return named(from_py_dataset(value, shuffle=training, ends_epochs=training), name)
    if is_grain(value):
        return from_grain(value, lambda batch: named_parts(batch, name), name)
    if hasattr(value, "reset_state") and isinstance(value, Iterable):
        kind = type(type(value).__name__, (_Named,), {})  # messages have the name
        return dataflow(kind(value, name), batched=True)
    if isinstance(value, Mapping) or (isinstance(value, tuple) and value):
        arrays = dict(value) if isinstance(value, Mapping) else named_parts(value, name)
        return from_arrays(arrays, name, config["model.batch_size"], training=training)
    return value


def named(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    """A dataset whose batches are dicts."""
    if isinstance(dataset.element_spec, dict):
        return dataset
    return dataset.map(lambda *parts: named_parts(parts, name))


def named_parts(batch: Any, name: str) -> dict[str, Any]:
    """A batch as a dict: the parts of a tuple or list are called as in `PARTS`, and one array "x".

    Raises:
        DataError: there are more parts than names.
    """
    if isinstance(batch, Mapping):
        return dict(batch)
    parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if len(parts) > len(PARTS):
        raise DataError(
            f"a tuple of {len(parts)} in dataset {name!r} has no names: up to three are {', '.join(PARTS)}; give a dict"
        )
    return {key: part for key, part in zip(PARTS, parts, strict=False) if part is not None}


class _Named:
    """A DataFlow whose data points are dicts."""

    def __init__(self, flow: Any, name: str) -> None:
        self._flow = flow
        self._name = name

    def reset_state(self) -> None:
        self._flow.reset_state()

    def __len__(self) -> int:
        return len(self._flow)

    def __iter__(self) -> Any:
        return (named_parts(point, self._name) for point in self._flow)


def from_arrays(arrays: dict[str, Any], name: str, batch_size: int, *, training: bool) -> tf.data.Dataset:
    """Batches of examples, which are the rows of arrays.

    What is shuffled, and saved with the position, are the numbers of the rows: eight bytes for each that is left.

    Args:
        arrays: of one length, by name; a value may be a dict or a tuple of arrays again.
        name: the dataset's, for messages.
        batch_size: of the batches.
        training: reshuffle them in each pass, and leave out what does not fill a batch at its end; otherwise all
            come in their order.

    Raises:
        DataError: they are not of one length, or too few to fill a batch.
    """
    converted = _converted(arrays)
    lengths = {path: _length(array) for path, array in by_path(converted).items()}
    if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise DataError(f"the arrays of dataset {name!r} must be of one length; they are of {_in_words(lengths)}")
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
    """An array as Keras takes it: a wider float becomes one of its default kind.

    Raises:
        DataError: it has no axis.
    """
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


def _in_words(lengths: dict[str, int]) -> str:
    return ", ".join(f"{path!r}: {length}" for path, length in lengths.items()) or "no arrays"


_LOOKED_AT = 2  # batches, to see which of their sizes vary
_KEPT_BATCHES = 64  # batches of a generator, which cannot be asked for them again
_passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def from_py_dataset(data: keras.utils.PyDataset, *, shuffle: bool, ends_epochs: bool) -> tf.data.Dataset:
    """The batches of one pass over a `PyDataset`.

    Args:
        data: its `workers` are not used.
        shuffle: whether the batches come in an order that depends on the run's seed and the pass.
        ends_epochs: whether to call its `on_epoch_end` and `on_epoch_begin` ahead of each pass, as `fit` does: as many
            times as there were passes, where a run continues in another process, and with NumPy's and Python's global
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
    """The batches that a generator gives, of which nothing was read.

    Without `again`, which makes it once more, it can be read once only, and a run that continues in another process
    counts on the same batches.
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

    Raises:
        DataError: it is another kind of iterator, whose position is unknown.
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
                if read.number <= _KEPT_BATCHES:
                    read.first.append(batch)
            index += 1
            yield batch


_FUNCTION = "give KerasTrainer the function that makes it, which is called for each pass"


def dataset_of(batches: Callable[[], Iterator[Any]], first: list[Any]) -> tf.data.Dataset:
    """A dataset of batches that Python code gives.

    Args:
        batches: gives them, once per iteration.
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


_KEPT_STATES = 1024  # states; more than the batches that are ever read ahead of the training
_THREADS = 8  # that read a `MapDataset`
_GRAIN = "grain_for_prototrain"  # on the Python object of a dataset
_Grain: TypeAlias = tuple[Any, Callable[[Any], dict[str, Any]]]


def is_grain(value: Any) -> bool:
    """Whether something is a dataset of Grain, which is not imported for that."""
    grain = sys.modules.get("grain")
    return grain is not None and isinstance(value, (grain.MapDataset, grain.IterDataset))


def from_grain(given: Any, named: Callable[[Any], dict[str, Any]], name: str) -> tf.data.Dataset:
    """The batches of one pass over a dataset of Grain; `GrainPosition` goes through the passes.

    Args:
        given: the dataset, of batches.
        named: makes a dict of a batch.
        name: the dataset's, for messages.

    Raises:
        DataError: it is empty, or its batches are not alike.
    """

    def batches() -> Iterator[Any]:
        return (as_tuple(named(batch)) for batch in _as_iterable(given))

    first = list(islice(batches(), 2))
    if not first:
        raise DataError(f"dataset {name!r} is empty")
    if any(not np.shape(array) for array in keras.tree.flatten(first[0])):
        raise DataError(f"dataset {name!r} gives numbers, not arrays with an axis of examples: .batch(...) makes them")
    found = dataset_of(batches, first)
    stages = describe(given)
    if hasattr(given, "__len__") and not any("Filter" in stage for stage in stages):  # whose length counts all
        length = tf.data.INFINITE_CARDINALITY if len(given) >= sys.maxsize else len(given)
        found = found.apply(tf.data.experimental.assert_cardinality(length))
    setattr(found, _GRAIN, (given, named))
    setattr(found, ABOUT, (stages, []))
    return found


def grain_of(dataset: tf.data.Dataset) -> _Grain | None:
    """The dataset of Grain that a dataset is made of, by `from_grain` and nothing behind it, and what names its parts;
    else None."""
    return getattr(dataset, _GRAIN, None)


def describe(given: Any) -> list[str]:
    """The stages of a dataset of Grain in words, from its source to its end: equal for equal ones in every process."""
    lines = [line for parent in given.parents for line in describe(parent)]
    # Of its attributes, what it was made with; there are others that come with use.
    names = {"seed_rng_seed", *inspect.signature(type(given).__init__).parameters}
    found = sorted((name.strip("_"), _shown(value)) for name, value in vars(given).items())
    settings = [f"{name}={value}" for name, value in found if value is not None and name in names]
    settings += [f"length={len(given)}"] if not given.parents and hasattr(given, "__len__") else []
    return [*lines, f"grain {type(given).__name__}({', '.join(settings)})"]


def _shown(value: Any) -> str | None:
    """A setting of a stage; None for what is none, or is not the same in every process."""
    values = value if isinstance(value, tuple | list) else [value]
    if values and all(type(one) in (int, float, bool) for one in values):
        return str(value)
    # A function is known by its name: where it stands says nothing about the data.
    return getattr(value, "__qualname__", type(value).__name__) if callable(value) else None


def _as_iterable(dataset: Any) -> Any:
    """A dataset to be read from its start, with a short buffer: Grain's default holds 500 batches of a `MapDataset`."""
    if not hasattr(dataset, "to_iter_dataset"):
        return dataset
    options = sys.modules["grain"].ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_THREADS)
    return dataset.to_iter_dataset(options)


class GrainPosition(Position):
    """Grain's own state, whatever its size, is the place.

    A `MapDataset` is repeated by Grain, which reshuffles it each time; an `IterDataset` is restarted at its end.
    """

    mode = "iterator"

    def __init__(self, source: Source, announce: Callable[[str], None], grain: _Grain) -> None:
        super().__init__(source, announce)
        self._grain = grain
        self._start(0, 0, None)

    def begin(self, number: int) -> None:
        self._start(number, 0, None)

    def _start(self, number: int, offset: int, state: str | None) -> None:
        reading = _Reading(self._grain, offset, state)
        self.iterator = None  # the old one first, which reads ahead
        spec = self._source.training.element_spec
        self.iterator = self._iterate(tf.data.Dataset.from_generator(reading.batches, output_signature=spec))
        self._reading = reading
        self.number, self.offset, self.behind = number, offset, 0

    def rewind(self) -> None:
        self._start(self.number, self.offset, self._reading.state_behind(self.offset))

    def write(self, prefix: str) -> Callable[[], Meta]:
        finish, state = super().write(prefix), self._reading.state_behind(self.offset)
        return lambda: {**finish(), "grain": state}

    def read(self, prefix: str, meta: Meta) -> str | None:
        try:
            self._start(meta["pass"], meta["offset"], meta.get("grain"))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the data position {prefix} is no state of this Grain dataset: {error}") from error
        return None


class _Reading:
    """One way through the data, from the state behind some batches of the pass on; None stands for the start."""

    def __init__(self, grain: _Grain, offset: int, state: str | None) -> None:
        dataset, self._named = grain
        if hasattr(dataset, "to_iter_dataset") and len(dataset) < sys.maxsize:  # a MapDataset with an end
            dataset = dataset.repeat()
        self._iterator = iter(_as_iterable(dataset))
        if state is not None:
            self._iterator.set_state(json.loads(state))
        self._offset = offset
        self._states = {offset: json.dumps(self._iterator.get_state()) if state is None else state}

    def batches(self) -> Iterator[Any]:
        """The batches, while the state behind each is noted; read by a thread of TensorFlow's."""
        for number, batch in enumerate(self._iterator, start=self._offset + 1):
            self._states[number] = json.dumps(self._iterator.get_state())  # now: Grain may change it later
            self._states.pop(number - _KEPT_STATES, None)
            yield as_tuple(self._named(batch))

    def state_behind(self, offset: int) -> str:
        """The state behind so many batches of the pass."""
        return self._states[offset]

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the interpreter there may be nothing left to close with
            self._iterator.close()
