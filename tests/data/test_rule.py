"""The rule that chooses the data position of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.data.iterator import DataIterator
from prototrain.errors import DataError
from tests.data.reading import data

pytestmark = pytest.mark.usefixtures("scratch")
D = tf.data.Dataset
Make = Callable[[], tf.data.Dataset]


def numbers() -> tf.data.Dataset:
    return D.range(12)


def generated() -> tf.data.Dataset:
    return D.from_generator(lambda: iter(range(12)), output_signature=tf.TensorSpec([], tf.int64))


def noisy(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.uniform([], 0, 9, tf.int64)


def with_options(**settings: Any) -> tf.data.Dataset:
    options = tf.data.Options()
    for name, value in settings.items():
        setattr(options, name, value)
    return numbers().shuffle(3).with_options(options)


def chosen(choices: tf.data.Dataset) -> tf.data.Dataset:
    return D.choose_from_datasets([numbers(), numbers()], choices)


EARLIER = numbers().shuffle(4, seed=3)
EARLIER_TWICE = EARLIER.shuffle(2, seed=1)
VARIABLE = tf.Variable(1, dtype=tf.int64)

ITERATOR: dict[str, Make] = {
    "slices": lambda: D.from_tensor_slices(np.arange(12)),
    "one shuffle": lambda: numbers().shuffle(3),
    "a shuffle of batches": lambda: numbers().batch(2).shuffle(3).unbatch(),
    "parallel maps": lambda: numbers().shuffle(3).map(lambda x: x + 1, num_parallel_calls=2).prefetch(2),
    "stateless random ops": lambda: numbers().map(lambda x: tf.random.stateless_uniform([], [x, 1])),
    "an index": lambda: numbers().shuffle(3).enumerate().map(lambda i, x: i + x),
    "branches": lambda: numbers().map(lambda x: tf.cond(x > 2, lambda: x, lambda: -x)),
    "a seed of its own": lambda: numbers().shuffle(3, seed=9).repeat(2),
    "a shuffle that is limited": lambda: numbers().shuffle(3).prefetch(2).take(4),
    "threads": lambda: with_options(deterministic=True),
    "files in turns, then a shuffle": lambda: numbers().interleave(lambda x: D.range(x)).shuffle(9),
    "concatenated": lambda: numbers().concatenate(D.range(5)).shuffle(3),
    "a cache in memory": lambda: numbers().cache().shuffle(3),
    "made before it is called": lambda: EARLIER,
}
REPLAY: dict[str, tuple[Make, str]] = {
    "two shuffles": (lambda: numbers().shuffle(3).shuffle(2), "2 shuffles"),
    "shuffled files": (lambda: numbers().shuffle(9).interleave(lambda x: D.range(x)), "shuffle below Interleave"),
    "a shuffle below a cache": (lambda: numbers().shuffle(9).cache(), "shuffle below Cache"),
    "a shuffle below others": (lambda: numbers().shuffle(3).concatenate(numbers()), "shuffle below Concatenate"),
    "sampled": (lambda: D.sample_from_datasets([numbers(), numbers()]), "stage (Variant|Random|DirectedInterleave)"),
    "chosen": (lambda: chosen(D.range(2).repeat(6)), "stage (Variant|DirectedInterleave)"),
    "chosen at random": (lambda: chosen(D.range(2).shuffle(2).repeat(6)), "stage (Variant|DirectedInterleave)"),
    "a generator": (generated, "Python code produces it"),
    "Python code": (lambda: numbers().map(lambda x: tf.py_function(abs, [x], tf.int64)), "Python code produces it"),
    "a variable": (lambda: numbers().map(lambda x: x + VARIABLE), "runs ReadVariableOp"),
    "random ops": (lambda: numbers().map(noisy), "Map draws random numbers"),
    "random ops below a shuffle": (lambda: numbers().map(noisy).shuffle(9), "Map draws random numbers"),
    "an inner shuffle": (lambda: numbers().flat_map(lambda x: D.range(4).shuffle(4)), "runs DummySeed"),
    "parallel random ops": (lambda: numbers().map(noisy, num_parallel_calls=2), "RandomUniform.* in any order"),
    "a snapshot": (lambda: numbers().snapshot("nowhere"), "stage (Variant|Snapshot)"),
    "a shuffle that is repeated and cut off": (lambda: numbers().shuffle(3).repeat().prefetch(9).take(4), "cut off"),
    "a file's cache": (lambda: numbers().cache("kept"), "cached in a file"),
    "an option": (lambda: with_options(experimental_symbolic_checkpoint=True), "symbolic_checkpoint"),
    "a stage that the table has not": (lambda: numbers().window(2).flat_map(lambda x: x), "Window"),
}
RESTART: dict[str, tuple[Make, str]] = {
    "any order": (lambda: numbers().map(lambda x: x, num_parallel_calls=2, deterministic=False), "ParallelMap has det"),
    "any order of files": (
        lambda: numbers().interleave(lambda x: D.range(3), num_parallel_calls=2, deterministic=False),
        "ParallelInterleave has deterministic=False",
    ),
    "two shuffles made before": (lambda: EARLIER_TWICE, r"made outside of datasets\(\)"),
    "any order by option": (lambda: with_options(deterministic=False), "options have deterministic=False"),
}


def data_of(make: Make, data_position: str = "auto") -> DataIterator:
    return data(lambda: make().batch(2).map(lambda x: {"x": x}), data_position=data_position)


@pytest.mark.parametrize("make", ITERATOR.values(), ids=ITERATOR)
def test_iterator(make: Make) -> None:
    source = data_of(make)
    assert (source.mode, source.reason, source.describe()) == ("iterator", "", "iterator")


@pytest.mark.parametrize(
    ("mode", "make", "why"),
    [*(("replay", *row) for row in REPLAY.values()), *(("restart", *row) for row in RESTART.values())],
    ids=[*REPLAY, *RESTART],
)
def test_other_modes(mode: str, make: Make, why: str) -> None:
    source = data_of(make)
    assert source.mode == mode and source.describe() == f"{mode} ({source.reason})"
    assert re.search(why, source.reason), source.reason


def test_config_key_overrides_the_rule() -> None:
    for mode in ("iterator", "replay", "restart"):
        assert data_of(lambda: numbers().shuffle(3).shuffle(2), mode).mode == mode
    for make in (generated, lambda: numbers().cache("kept")):
        with pytest.raises(DataError, match=r"trainer\.data_position"):
            data_of(make, "iterator")


def test_unseeded_shuffle_restarts() -> None:
    tf.random.set_seed(None)
    made = numbers().shuffle(3)
    assert data_of(lambda: made).describe().startswith("restart (it is shuffled without a seed")
