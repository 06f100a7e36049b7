"""Shuffling by index: a new order in each pass, and a position that is a number."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from prototrain.data.pipeline import reshuffles
from prototrain.readers.order import Order, _permuted, random_order
from tests.data.reading import assert_exact, data, read

D = tf.data.Dataset
Y = {"y": ("int64", [])}


def numbers(length: int) -> D:
    return random_order(length, lambda rows: {"y": rows}, about="numbers", files=[], each=8)


def seeded(length: int, seed: int) -> D:
    random.seed(seed)
    return numbers(length)


def labels(dataset: D) -> list[int]:
    return [int(item["y"]) for item in dataset.as_numpy_iterator()]


def test_orders_are_uniform_and_differ_between_passes() -> None:
    random.seed(0)
    order = Order(4)
    seeds = tf.constant(np.stack([order.begin()[1] for _ in range(480)]))
    places = [_permuted(tf.fill([480], tf.constant(number, tf.int64)), seeds, 4).numpy() for number in range(4)]
    found = Counter(zip(*(column.tolist() for column in places), strict=True))
    assert all(sorted(one) == [0, 1, 2, 3] for one in found) and len(found) == 24
    assert sum((count - 20) ** 2 / 20 for count in found.values()) < 49.7  # chi square, 23 degrees: one in a thousand
    large = [labels(seeded(1000, seed)) for seed in (1, 2, 1)]
    assert sorted(large[0]) == list(range(1000)) and large[0] == large[2] != large[1]
    assert Counter(np.diff(large[0]) == 1)[True] < 10


@pytest.mark.parametrize(
    "above",
    [
        lambda d: d.batch(4, drop_remainder=True).prefetch(2),
        lambda d: d.repeat().map(lambda item: {"y": item["y"] + 1}, num_parallel_calls=2).batch(4),
        lambda d: d.padded_batch(4).repeat(),
    ],
)
def test_position_is_a_number_and_resumes_exactly(above: Callable[[D], D], tmp_path: Path) -> None:
    source = assert_exact(lambda: above(numbers(10)), tmp_path, (1, 3, 6), 9)
    assert source.describe() == "iterator" and not list(tmp_path.iterdir())
    assert all(one != other for one, other in pairwise(read(source, 9)))


@pytest.mark.parametrize(
    "above",
    [
        lambda d: d.shuffle(3).batch(4),
        lambda d: d.enumerate().map(lambda number, item: {"y": item["y"] + number}).batch(4),
    ],
)
def test_other_pipelines_are_replayed(above: Callable[[D], D], tmp_path: Path) -> None:
    source = assert_exact(lambda: above(numbers(10)), tmp_path, (7,), 8)
    assert source.mode == "replay"
    batches = read(data(lambda: above(numbers(10))), 6)
    assert batches[:3] != batches[3:]


def test_reader_made_outside_datasets_restarts() -> None:
    dataset = numbers(10).batch(4)
    source = data(lambda: dataset)
    assert source.mode == "restart" and "made outside of datasets()" in source.reason
    assert reshuffles(dataset)  # the message names the validation data
