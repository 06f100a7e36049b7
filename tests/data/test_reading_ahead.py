"""How many batches are made ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.data.reading_ahead import prefetched
from prototrain.data.stages import name_of
from prototrain.tf_private import stage_inputs, stage_number

AUTOTUNE = tf.data.AUTOTUNE
NUMBERS = tf.data.Dataset.range(3)


@pytest.mark.parametrize(
    ("dataset", "is_already"),
    [
        (NUMBERS, False),
        (NUMBERS.prefetch(1).batch(2), False),
        (NUMBERS.prefetch(AUTOTUNE).batch(2), False),
        (NUMBERS.prefetch(1), True),
        (NUMBERS.prefetch(1).repeat(), True),
        (NUMBERS.prefetch(1).repeat().with_options(tf.data.Options()), True),
        (NUMBERS.with_options(tf.data.Options()), False),
    ],
)
def test_batches_are_made_ahead_once(dataset: Any, is_already: bool) -> None:
    assert (prefetched(dataset, 2) is dataset) == is_already


def of(shape: list[int], dtype: Any = np.float32) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors({"x": tf.constant(0, dtype)}).map(lambda row: {"x": tf.fill(shape, row["x"])})


def with_options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


@pytest.mark.parametrize(
    ("dataset", "size"),
    [
        (of([32, 64]), 16),
        (of([2**20]), 16),
        (of([3 * 2**20]), 5),
        (of([2**28]), 2),
        (tf.data.Dataset.from_tensor_slices(["a", "b"]).batch(2, drop_remainder=True), 2),
        (NUMBERS.batch(2), 2),
        (NUMBERS.batch(2, drop_remainder=True), 16),
        (tf.data.Dataset.from_tensors(tf.ragged.constant([[1], []])), 2),
    ],
)
@pytest.mark.parametrize(
    "above", [lambda d: d, lambda d: with_options(d.repeat(2)), lambda d: with_options(d).repeat()]
)
def test_a_buffer_that_would_grow_has_a_length(dataset: Any, size: int, above: Any) -> None:
    found = prefetched(above(dataset.prefetch(AUTOTUNE)), 2)
    assert found.cardinality() == above(dataset).cardinality() and found.element_spec == dataset.element_spec
    assert found.options().deterministic == above(dataset).options().deterministic
    while name_of(found) != "_Prefetch":
        (found,) = stage_inputs(found)
    assert stage_number(found, "buffer_size") == size


def test_the_place_that_an_earlier_version_has_saved_in_a_longer_buffer_is_come_back_to(tmp_path: Path) -> None:
    made = tf.data.Dataset.range(1000).shuffle(100, 1, reshuffle_each_iteration=False).batch(2, drop_remainder=True)
    iterators = [iter(dataset) for dataset in (made.prefetch(200), prefetched(made.prefetch(AUTOTUNE), 2))]
    expected = [next(iterators[0]).numpy().tolist() for _ in range(300)]
    earlier = iter(made.prefetch(200))
    for _ in range(10):
        next(earlier)
    tf.train.Checkpoint(it=earlier).write(str(tmp_path / "place"))
    tf.train.Checkpoint(it=iterators[1]).read(str(tmp_path / "place")).assert_consumed()
    assert [next(iterators[1]).numpy().tolist() for _ in range(290)] == expected[10:]
