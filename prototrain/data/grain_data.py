"""Datasets of Grain (https://google-grain.readthedocs.io), whose place is a small state of its own.

TensorFlow reads them through Python, some batches ahead, and knows nothing of that state. So it is noted for each batch
as Grain hands it out, and the one behind the last batch that was trained on is the place.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.data.position import Meta, Position
from prototrain.data.python_data import as_tuple, dataset_of
from prototrain.data.reading_ahead import PREFETCH, prefetched
from prototrain.data.source import Source
from prototrain.errors import CheckpointError, DataError
from prototrain.readers.order import DESCRIPTION

_KEPT = 64  # states; more than the batches that are ever read ahead of the training
_THREADS = 8  # that read a `MapDataset`
_GRAIN = "grain_for_prototrain"  # on the Python object of a dataset


def is_grain(value: Any) -> bool:
    """Whether something is a dataset of Grain, which is not imported for that."""
    grain = sys.modules.get("grain")
    return grain is not None and isinstance(value, (grain.MapDataset, grain.IterDataset))


@dataclass(frozen=True)
class _Grain:
    """What a dataset is made of.

    Attributes:
        dataset: of Grain, as it was given.
        named: makes a dict of a batch.
    """

    dataset: Any
    named: Callable[[Any], dict[str, Any]]


def from_grain(given: Any, named: Callable[[Any], dict[str, Any]], name: str) -> tf.data.Dataset:
    """The batches of one pass over a dataset of Grain; `GrainPosition` goes through the passes.

    Args:
        given: the dataset, of batches.
        named: makes a dict of a batch.
        name: the dataset's, for messages.

    Raises:
        DataError: it is empty, or its batches are not alike.
    """
    grain = _Grain(given, named)

    def batches() -> Iterator[Any]:
        return (_tensors(grain, batch) for batch in _as_iterable(given))

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
    setattr(found, _GRAIN, grain)
    setattr(found, DESCRIPTION, stages)
    return found


def grain_of(dataset: tf.data.Dataset) -> _Grain | None:
    """What a dataset is made of by `from_grain`, and by nothing behind it; else None."""
    return getattr(dataset, _GRAIN, None)


def _tensors(grain: _Grain, batch: Any) -> Any:
    return as_tuple(grain.named(batch))


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
    """A dataset to be read from its start: Grain by itself would have 500 batches of a `MapDataset` read ahead."""
    if not hasattr(dataset, "to_iter_dataset"):
        return dataset
    options = sys.modules["grain"].ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_THREADS)
    return dataset.to_iter_dataset(options)


class GrainPosition(Position):
    """Grain's own state, whatever its size, is the place.

    A `MapDataset` is repeated by Grain, which shuffles it anew each time; an `IterDataset` is begun anew at its end.

    Args:
        source: see `Position`.
        announce: see `Position`.
        grain: what the training dataset is made of.
    """

    mode = "iterator"

    def __init__(self, source: Source, announce: Callable[[str], None], grain: _Grain) -> None:
        super().__init__(source, announce)
        self._start(grain, 0, 0, None)

    def begin(self, number: int) -> None:
        grain = grain_of(self._source.training_of(number))
        self._start(self._grain if grain is None else grain, number, 0, None)

    def _start(self, grain: _Grain, number: int, offset: int, state: str | None) -> None:
        reading = _Reading(grain, offset, state)
        self.iterator = None  # the old one first, which reads ahead
        spec = self._source.training.element_spec
        dataset = tf.data.Dataset.from_generator(reading.batches, output_signature=spec)
        self.iterator = iter(prefetched(dataset, PREFETCH))
        self._grain, self._reading = grain, reading
        self.number, self.offset, self.behind = number, offset, 0

    def rewind(self) -> None:
        self._start(self._grain, self.number, self.offset, self._reading.state_behind(self.offset))

    def write(self, prefix: str) -> Callable[[], Meta]:
        finish, state = super().write(prefix), self._reading.state_behind(self.offset)
        return lambda: {**finish(), "grain": state}

    def read(self, prefix: str, meta: Meta) -> str | None:
        number, state = meta["pass"], meta.get("grain")
        grain = self._grain if number == self.number else grain_of(self._source.training_of(number))
        try:
            self._start(self._grain if grain is None else grain, number, meta["offset"], state)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the data position {prefix} is no state of this Grain dataset: {error}") from error
        return None


class _Reading:
    """One way through the data, from a state on.

    Args:
        grain: what is read.
        offset: how many batches of the pass lie before.
        state: behind these, as JSON; None for the start.
    """

    def __init__(self, grain: _Grain, offset: int, state: str | None) -> None:
        dataset = grain.dataset
        if hasattr(dataset, "to_iter_dataset") and len(dataset) < sys.maxsize:  # a MapDataset with an end
            dataset = dataset.repeat()
        self._grain = grain
        self._iterator = iter(_as_iterable(dataset))
        if state is not None:
            self._iterator.set_state(json.loads(state))
        self._offset = offset
        self._states = {offset: json.dumps(self._iterator.get_state()) if state is None else state}

    def batches(self) -> Iterator[Any]:
        """The batches, while the state behind each is noted; read by a thread of TensorFlow's."""
        for number, batch in enumerate(self._iterator, start=self._offset + 1):
            self._states[number] = json.dumps(self._iterator.get_state())  # now: Grain may go on changing it
            self._states.pop(number - _KEPT, None)
            yield _tensors(self._grain, batch)

    def state_behind(self, offset: int) -> str:
        """The state behind so many batches of the pass."""
        return self._states[offset]

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the interpreter there may be nothing left to close with
            self._iterator.close()
