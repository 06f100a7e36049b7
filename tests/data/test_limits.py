"""Less data than there is."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.data.batches import limited


def datasets() -> dict[str, tf.data.Dataset]:
    numbers = tf.data.Dataset.range(10)
    return {"trn": numbers.shuffle(10).batch(4), "vld": numbers.batch(3)}


def values(dataset: tf.data.Dataset) -> list[Any]:
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def test_the_first_batches_of_each_dataset() -> None:
    assert limited(datasets, limit=None, overfit=None) is datasets
    found = limited(datasets, limit=2, overfit=None)()
    assert values(found["vld"]) == [[0, 1, 2], [3, 4, 5]]
    assert len(values(found["trn"])) == 2


def test_the_same_batches_in_every_pass_and_dataset() -> None:
    make = limited(datasets, limit=None, overfit=3)
    batches = values(make()["trn"])
    assert list(map(len, batches)) == [4, 4, 2]
    assert values(make()["trn"]) == values(make()["vld"]) == batches
    assert int(make()["trn"].cardinality()) == 3
