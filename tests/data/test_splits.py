"""A split of data that each pass shuffles in another way is said; any other split is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.data.stream import TrainingData

D = tf.data.Dataset
Parts = tuple[tf.data.Dataset, tf.data.Dataset]  # to train on, held out


def source() -> tf.data.Dataset:
    return D.from_tensor_slices(np.arange(40))


def in_two(dataset: tf.data.Dataset) -> Parts:
    return dataset.skip(8), dataset.take(8)


def by_number(dataset: tf.data.Dataset) -> Parts:
    def part(which: Callable[[Any], Any]) -> tf.data.Dataset:
        return dataset.enumerate().filter(lambda i, x: which(i % 5)).map(lambda i, x: x)

    return part(lambda rest: rest > 0), part(lambda rest: rest == 0)


def shards(dataset: tf.data.Dataset) -> Parts:
    return dataset.shard(4, 0).concatenate(dataset.shard(4, 1)), dataset.shard(4, 3)


def thrice(dataset: tf.data.Dataset) -> Parts:
    return dataset.take(24), dataset.skip(24).take(8)


def fixed(**settings: Any) -> tf.data.Dataset:
    return source().shuffle(40, reshuffle_each_iteration=False, **settings)


def with_another_shuffle(parts: Parts) -> Parts:
    return parts[0].shuffle(32), parts[1]


def of_files() -> Parts:
    names = [f"{number}.txt" for number in range(4)]
    files = D.from_tensor_slices(names).shuffle(4)
    return tuple(part.map(tf.strings.length) for part in (files.skip(1), files.take(1)))  # type: ignore[return-value]


MIXED: dict[str, Callable[[], Parts]] = {
    "take and skip": lambda: in_two(source().shuffle(40)),
    "in batches": lambda: in_two(source().shuffle(40).map(lambda x: x + 1).batch(2).unbatch()),
    "with a seed": lambda: in_two(source().shuffle(40, seed=1)),
    "three parts": lambda: thrice(source().shuffle(40)),
    "shards": lambda: shards(source().shuffle(40)),
    "by number": lambda: by_number(source().shuffle(40)),
    "files": of_files,
    "two shuffles": lambda: (source().shuffle(40).skip(8), source().shuffle(40).take(8)),
    "two fixed shuffles of other seeds": lambda: (fixed(seed=1).skip(8), fixed(seed=2).take(8)),
    "a fixed shuffle that each pass makes anew": lambda: with_another_shuffle(in_two(fixed())),
}
APART: dict[str, Callable[[], Parts]] = {
    "split first": lambda: with_another_shuffle(in_two(source())),
    "both shuffled behind the split": lambda: (
        source().skip(8).shuffle(40).take(9),
        source().take(8).shuffle(8).skip(1),
    ),
    "a fixed shuffle": lambda: in_two(fixed()),
    "two fixed shuffles of one seed": lambda: (fixed(seed=1).skip(8), fixed(seed=1).take(8)),
    "the same data": lambda: (source().shuffle(40), source().shuffle(40)),
    "some of what is trained on": lambda: (lambda data: (data, data.take(8)))(source().shuffle(40)),
    "limits": lambda: (lambda data: (data.take(16), data.take(8)))(source().shuffle(40)),
    "other data": lambda: (source().shuffle(40).skip(8), D.range(99).shuffle(40).take(8)),
    "by content": lambda: (lambda data: (data.filter(lambda x: x % 5 > 0), data.filter(lambda x: x % 5 == 0)))(
        source().shuffle(40)
    ),
}


def said(make: Callable[[], Parts]) -> list[str]:
    lines: list[str] = []

    def datasets() -> dict[str, tf.data.Dataset]:
        trn, vld = make()
        return {name: part.batch(4).map(lambda x: {"x": x}) for name, part in (("trn", trn), ("vld", vld))}

    TrainingData(datasets, seed=5, announce=lines.append)
    return [line for line in lines if line.startswith("WARNING")]


@pytest.mark.parametrize("make", MIXED.values(), ids=MIXED)
def test_mixed_parts_are_said(make: Callable[[], Parts]) -> None:
    (line,) = said(make)
    assert "examples of 'vld' are trained on; split it before it is shuffled" in line


@pytest.mark.parametrize("make", APART.values(), ids=APART)
def test_other_parts_are_not(make: Callable[[], Parts]) -> None:
    assert said(make) == []


def test_a_cure_is_one() -> None:
    (line,) = said(lambda: in_two(source().shuffle(40)))
    assert line.endswith("or shuffle(..., reshuffle_each_iteration=False)")
    (line,) = said(lambda: with_another_shuffle(in_two(source().shuffle(40))))
    assert "reshuffle_each_iteration" not in line  # each pass is built anew then
