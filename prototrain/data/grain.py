"""Batches of Grain datasets, and positions from Grain's own iterator state."""

from __future__ import annotations

import inspect
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import tensorflow as tf

from prototrain.data.positions import Place, Position
from prototrain.data.source import Source
from prototrain.errors import CheckpointError
from prototrain.readers.order import ABOUT
from prototrain.tf_private import taking_python_functions

_KEPT_STATES = 1024  # more than are ever prefetched
_THREADS = 8  # for reading a `MapDataset`
_GRAIN = "grain_for_prototrain"  # an attribute of the dataset's Python object
Grain = tuple[Any, Callable[[Any], dict[str, Any]]]
"""A Grain dataset, and the function that converts its batches to dicts."""


def is_grain(value: Any) -> bool:
    """Return whether a value is a Grain dataset, without importing Grain."""
    grain = sys.modules.get("grain")
    return grain is not None and isinstance(value, (grain.MapDataset, grain.IterDataset))


def grain_of(dataset: tf.data.Dataset) -> Grain | None:
    """Return the Grain dataset that `mark_grain` attached to this dataset object, or None."""
    return getattr(dataset, _GRAIN, None)


def mark_grain(dataset: tf.data.Dataset, given: Any, named: Callable[[Any], dict[str, Any]]) -> tf.data.Dataset:
    """Attach the Grain dataset that a dataset reads, and set its length."""
    stages = _describe(given)
    if hasattr(given, "__len__") and not any("Filter" in stage for stage in stages):  # a filter has no exact length
        length = tf.data.INFINITE_CARDINALITY if len(given) >= sys.maxsize else len(given)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    setattr(dataset, _GRAIN, (given, named))
    setattr(dataset, ABOUT, (stages, []))
    return dataset


def _describe(given: Any) -> list[str]:
    """Return a line for each stage of a Grain dataset, source first; the same in every process."""
    lines = [line for parent in given.parents for line in _describe(parent)]
    # Only the attributes set by the constructor: others appear with use.
    names = {"seed_rng_seed", *inspect.signature(type(given).__init__).parameters}
    found = sorted((name.strip("_"), _shown(value)) for name, value in vars(given).items() if name.strip("_") in names)
    settings = [f"{name}={value}" for name, value in found if value is not None]
    settings += [f"length={len(given)}"] if not given.parents and hasattr(given, "__len__") else []
    return [*lines, f"grain {type(given).__name__}({', '.join(settings)})"]


def _shown(value: Any) -> str | None:
    """Return a stage's setting as text, or None if it differs between processes."""
    values = value if isinstance(value, tuple | list) else [value]
    if values and all(type(one) in (int, float, bool) for one in values):
        return str(value)
    return getattr(value, "__qualname__", type(value).__name__) if callable(value) else None


def read_grain(dataset: Any) -> Any:
    """Return an `IterDataset` with a short buffer: Grain's default holds 500 batches of a `MapDataset`."""
    if not hasattr(dataset, "to_iter_dataset"):
        return dataset
    options = sys.modules["grain"].ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_THREADS)
    return dataset.to_iter_dataset(options)


class GrainPosition(Position):
    """A position that is the state of a Grain iterator.

    Grain repeats a `MapDataset` and reshuffles it in each pass. An `IterDataset` is restarted at its end.
    """

    mode = "iterator"

    def __init__(self, source: Source, grain: Grain) -> None:
        super().__init__(source)
        self._grain = grain
        self._reading: _Reading | None = None
        self._functions: deque[list[Any]] = deque(maxlen=2)  # the iterator of the pass before may still end
        self.begin(0)

    def begin(self, number: int) -> None:
        self.go({"pass": number, "offset": 0, "grain": None})

    def go(self, place: Place) -> None:
        self.iterator = None  # the old iterator prefetches
        if self._reading is not None:
            self._reading.close()
        try:
            self._reading = _Reading(self._grain, place["offset"], place["grain"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the data position is no state of this Grain dataset: {error}") from error
        spec = self._source.training.element_spec
        with taking_python_functions() as functions:
            dataset = tf.data.Dataset.from_generator(self._reading.batches, output_signature=spec)
        self._functions.append(functions)
        self._read(dataset, place["pass"], place["offset"])

    def place(self) -> Place:
        assert self._reading is not None
        return {**super().place(), "grain": self._reading.states[self.offset]}


class _Reading:
    """One iteration over the data, from a saved state after `offset` batches; from the start if the state is None."""

    def __init__(self, grain: Grain, offset: int, state: str | None) -> None:
        dataset, self._named = grain
        if hasattr(dataset, "to_iter_dataset") and len(dataset) < sys.maxsize:  # a finite MapDataset
            dataset = dataset.repeat()
        self._iterator = iter(read_grain(dataset))
        if state is not None:
            self._iterator.set_state(json.loads(state))
        self._offset = offset
        self.states = {offset: json.dumps(self._iterator.get_state()) if state is None else state}

    def batches(self) -> Iterator[Any]:
        """Yield the batches and record the state after each; runs in a TensorFlow thread."""
        for number, batch in enumerate(self._iterator, start=self._offset + 1):
            self.states[number] = json.dumps(self._iterator.get_state())  # a copy: Grain may change it later
            self.states.pop(number - _KEPT_STATES, None)
            yield self._named(batch)
        self.close()

    def close(self) -> None:
        """End the threads of the iterator."""
        with suppress(Exception):  # at interpreter shutdown, modules may be gone
            self._iterator.close()

    __del__ = close
