"""A position in data that a reader shuffles by index: a number, from which the example follows that is next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from prototrain.data.position import Meta, Position, iterate
from prototrain.data.rule import is_function_of_element
from prototrain.data.source import Source
from prototrain.data.stages import name_of, sources
from prototrain.private_api.datasets import stage_number
from prototrain.readers.order import Order, order_of

_ONE_BY_ONE = ("_Map", "_ParallelMap", "_Options", "_Prefetch", "_Restructured", "_DenseToRagged")
_BATCHES = ("_Batch", "_ParallelBatch", "_PaddedBatch")


@dataclass(frozen=True)
class Indexed:
    """A dataset of which is known which examples each of its elements is made of.

    Attributes:
        order: of the examples.
        steps: what stands between these and the dataset, from the examples on: the size of a batch, and whether one
            that is not full is left out; or None, for data that begins anew at its end.
    """

    order: Order
    steps: tuple[tuple[int, bool] | None, ...]

    def place_of(self, offset: int) -> tuple[int, int]:
        """Which example is next after so many elements: the number of the reading, and of its example."""
        lengths: list[int | None] = [self.order.length]  # of what each step is given; None: without an end
        for step in self.steps:
            lengths.append(_length_behind(step, lengths[-1]))
        reading, place = 0, offset
        # Whoever reads the dataset begins it anew at its end, if it has one.
        for step, length in reversed(list(zip((*self.steps, None), lengths, strict=True))):
            if step is not None:
                place *= step[0]
            elif length:
                reading, place = divmod(place, length)
        return reading, place


def _length_behind(step: tuple[int, bool] | None, length: int | None) -> int | None:
    if step is None or length is None:
        return None
    size, is_full = step
    return length // size if is_full else -(-length // size)


def indexed(dataset: tf.data.Dataset) -> Indexed | None:
    """What is known of a dataset; None if it is none of a reader's, or has other stages above that."""
    steps: list[tuple[int, bool] | None] = []
    stage: Any = dataset
    while (order := order_of(stage)) is None:
        below, name = sources(stage), name_of(stage)
        if len(below) != 1 or not is_function_of_element(stage):
            return None
        if name in _BATCHES:
            size, full = stage_number(stage, "batch_size"), stage_number(stage, "drop_remainder")
            if size is None or full is None:
                return None
            steps.append((size, bool(full)))
        elif name == "_Repeat" and stage_number(stage, "count") == -1:
            steps.append(None)
        elif name not in _ONE_BY_ONE:
            return None
        (stage,) = below
    return Indexed(order, tuple(reversed(steps)))


class IndexedPosition(Position):
    """The number of batches is the place: the pipeline is begun at the example that follows from it.

    Args:
        source: see `Position`.
        announce: see `Position`.
        dataset: the first pass, which nobody else reads.
    """

    mode = "iterator"
    endless = True

    def __init__(self, source: Source, announce: Callable[[str], None], dataset: tf.data.Dataset) -> None:
        super().__init__(source, announce)
        self._dataset = dataset
        self._start(0, 0)

    def begin(self, number: int) -> None:
        self._dataset = self._source.training_of(number)
        self._start(number, 0)

    def _start(self, number: int, offset: int) -> None:
        known = indexed(self._dataset)
        assert known is not None, "the datasets of all passes are made of the same stages"
        self.iterator = None  # the old one first, which reads ahead
        known.order.go_to(*known.place_of(offset))
        self.iterator = iterate(self._dataset, endless=True)
        self.number, self.offset, self.behind = number, offset, 0

    def rewind(self) -> None:
        self._start(self.number, self.offset)

    def read(self, prefix: str, meta: Meta) -> str | None:
        if meta["pass"] != self.number:
            self._dataset = self._source.training_of(meta["pass"])
        self._start(meta["pass"], meta["offset"])
        return None
