"""Batches of Grain datasets, and positions from Grain's own iterator state."""

from __future__ import annotations

import json
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import tensorflow as tf

from prototrain.data.batches import Batch
from prototrain.data.iterator import DataIterator, Place
from prototrain.data.source import Source
from prototrain.errors import CheckpointError
from prototrain.readers.order import ABOUT
from prototrain.tf_private import taking_python_functions

_KEPT_STATES = 1024  # more than are ever prefetched
_THREADS = 8  # for reading a `MapDataset`
_GRAIN = "grain_for_prototrain"  # an attribute of the dataset's Python object


def is_grain(value: Any) -> bool:
    """Return whether a value is a Grain dataset, without importing Grain."""
    grain = sys.modules.get("grain")
    return grain is not None and isinstance(value, (grain.MapDataset, grain.IterDataset))


def reads_grain(dataset: tf.data.Dataset) -> bool:
    """Return whether this dataset object was marked by `mark_grain`."""
    return hasattr(dataset, _GRAIN)


def mark_grain(dataset: tf.data.Dataset, given: Any, named: Callable[[Any], Batch]) -> tf.data.Dataset:
    """Attach the Grain dataset that a dataset reads, with the function that names its parts, and set its length."""
    stages = _stages(given)
    if hasattr(given, "__len__") and not any("Filter" in stage for stage in stages):  # a filter has no exact length
        length = tf.data.INFINITE_CARDINALITY if len(given) >= sys.maxsize else len(given)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    setattr(dataset, _GRAIN, (given, named))
    setattr(dataset, ABOUT, (stages, []))
    return dataset


def _stages(given: Any) -> list[str]:
    """Return the names of the stages of a Grain dataset, source first."""
    return [*(name for parent in given.parents for name in _stages(parent)), f"grain {type(given).__name__}"]


def read_grain(dataset: Any) -> Any:
    """Return an `IterDataset` with a short buffer: Grain's default holds 500 batches of a `MapDataset`."""
    if not hasattr(dataset, "to_iter_dataset"):
        return dataset
    options = sys.modules["grain"].ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_THREADS)
    return dataset.to_iter_dataset(options)


class GrainIterator(DataIterator):
    """Training data whose position is the state of a Grain iterator.

    Grain repeats a `MapDataset` and reshuffles it in each pass. An `IterDataset` is restarted at its end.
    """

    mode = "iterator"

    def __init__(self, source: Source) -> None:
        self._states: dict[int, str] = {}  # by the number of batches of the pass
        self._close: Callable[[], object] = lambda: None
        self._functions: deque[list[Any]] = deque(maxlen=2)  # the iterator of the pass before may still end
        super().__init__(source)

    def _look(self) -> Batch:
        self._begin(0)
        return self._peek()

    def _begin(self, number: int) -> None:
        self._go({"pass": number, "offset": 0, "grain": None})

    def _go(self, place: Place) -> None:
        self.iterator = None  # the old iterator prefetches
        self._close()
        given, named = getattr(self._source.training, _GRAIN)
        is_finite = hasattr(given, "to_iter_dataset") and len(given) < sys.maxsize  # a MapDataset
        reading = iter(read_grain(given.repeat() if is_finite else given))
        self._close = weakref.finalize(self, _close, reading)
        try:
            if place["grain"] is not None:
                reading.set_state(json.loads(place["grain"]))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the data position is no state of this Grain dataset: {error}") from error
        states = self._states = {place["offset"]: json.dumps(reading.get_state())}

        def batches() -> Iterator[Any]:
            for number, batch in enumerate(reading, start=place["offset"] + 1):
                states[number] = json.dumps(reading.get_state())  # a copy: Grain may change it later
                states.pop(number - _KEPT_STATES, None)
                yield named(batch)
            _close(reading)

        with taking_python_functions() as functions:
            dataset = tf.data.Dataset.from_generator(batches, output_signature=self._source.training.element_spec)
        self._functions.append(functions)
        self._read(dataset, place["pass"], place["offset"])

    def _place(self) -> Place:
        return {**super()._place(), "grain": self._states[self.offset]}


def _close(reading: Any) -> None:
    """End the threads of a Grain iterator."""
    with suppress(Exception):  # at interpreter shutdown, modules may be gone
        reading.close()
