"""Datasets of Grain: their batches, and the position that Grain itself saves."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import tensorflow as tf

from prototrain.data.positions import Place, Position
from prototrain.data.source import Source
from prototrain.errors import CheckpointError
from prototrain.readers.order import ABOUT

_KEPT_STATES = 1024  # more than the batches that are ever read ahead of the training
_THREADS = 8  # that read a `MapDataset`
_GRAIN = "grain_for_prototrain"  # on the Python object of a dataset
Grain = tuple[Any, Callable[[Any], dict[str, Any]]]
"""A dataset of Grain, and what makes a dict of its batches."""


def is_grain(value: Any) -> bool:
    """Whether something is a dataset of Grain, which is not imported for that."""
    grain = sys.modules.get("grain")
    return grain is not None and isinstance(value, (grain.MapDataset, grain.IterDataset))


def grain_of(dataset: tf.data.Dataset) -> Grain | None:
    """What `mark_grain` has noted of a dataset; None of others, also of those with stages above it."""
    return getattr(dataset, _GRAIN, None)


def mark_grain(dataset: tf.data.Dataset, given: Any, named: Callable[[Any], dict[str, Any]]) -> tf.data.Dataset:
    """Note the dataset of Grain that a dataset reads, and its length."""
    stages = _describe(given)
    if hasattr(given, "__len__") and not any("Filter" in stage for stage in stages):  # whose length counts all
        length = tf.data.INFINITE_CARDINALITY if len(given) >= sys.maxsize else len(given)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    setattr(dataset, _GRAIN, (given, named))
    setattr(dataset, ABOUT, (stages, []))
    return dataset


def _describe(given: Any) -> list[str]:
    """The stages of a dataset of Grain in words, from its source to its end: equal for equal ones in every process."""
    lines = [line for parent in given.parents for line in _describe(parent)]
    # Of its attributes, what it was made with; there are others that come with use.
    names = {"seed_rng_seed", *inspect.signature(type(given).__init__).parameters}
    found = sorted((name.strip("_"), _shown(value)) for name, value in vars(given).items() if name.strip("_") in names)
    settings = [f"{name}={value}" for name, value in found if value is not None]
    settings += [f"length={len(given)}"] if not given.parents and hasattr(given, "__len__") else []
    return [*lines, f"grain {type(given).__name__}({', '.join(settings)})"]


def _shown(value: Any) -> str | None:
    """A setting of a stage; None for what is not the same in every process."""
    values = value if isinstance(value, tuple | list) else [value]
    if values and all(type(one) in (int, float, bool) for one in values):
        return str(value)
    return getattr(value, "__qualname__", type(value).__name__) if callable(value) else None


def read_grain(dataset: Any) -> Any:
    """A dataset to be read from its start, with a short buffer: Grain's default holds 500 batches of a `MapDataset`."""
    if not hasattr(dataset, "to_iter_dataset"):
        return dataset
    options = sys.modules["grain"].ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_THREADS)
    return dataset.to_iter_dataset(options)


class GrainPosition(Position):
    """Grain's own state is the place.

    A `MapDataset` is repeated by Grain, which reshuffles it each time; an `IterDataset` is restarted at its end.
    """

    mode = "iterator"

    def __init__(self, source: Source, grain: Grain) -> None:
        super().__init__(source)
        self._grain = grain
        self.begin(0)

    def begin(self, number: int) -> None:
        self.go({"pass": number, "offset": 0, "grain": None})

    def go(self, place: Place) -> None:
        self.iterator = None  # the old one reads ahead
        try:
            self._reading = _Reading(self._grain, place["offset"], place["grain"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the data position is no state of this Grain dataset: {error}") from error
        spec = self._source.training.element_spec
        dataset = tf.data.Dataset.from_generator(self._reading.batches, output_signature=spec)
        self._read(dataset, place["pass"], place["offset"])

    def place(self) -> Place:
        return {**super().place(), "grain": self._reading.states[self.offset]}


class _Reading:
    """One way through the data, from the state behind some batches of the pass on; None stands for the start."""

    def __init__(self, grain: Grain, offset: int, state: str | None) -> None:
        dataset, self._named = grain
        if hasattr(dataset, "to_iter_dataset") and len(dataset) < sys.maxsize:  # a MapDataset with an end
            dataset = dataset.repeat()
        self._iterator = iter(read_grain(dataset))
        if state is not None:
            self._iterator.set_state(json.loads(state))
        self._offset = offset
        self.states = {offset: json.dumps(self._iterator.get_state()) if state is None else state}

    def batches(self) -> Iterator[Any]:
        """The batches, while the state behind each is noted; read by a thread of TensorFlow's."""
        for number, batch in enumerate(self._iterator, start=self._offset + 1):
            self.states[number] = json.dumps(self._iterator.get_state())  # now: Grain may change it later
            self.states.pop(number - _KEPT_STATES, None)
            yield self._named(batch)

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the interpreter there may be nothing left to close with
            self._iterator.close()
