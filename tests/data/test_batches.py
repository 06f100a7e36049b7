"""Batches: their structure, paths, sizes and parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.data.batches import batch_size, by_path, check_dataset, first_part, limited, split_batch
from prototrain.errors import DataError

X = np.ones([4, 2], np.float32)


def of(elements: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(elements)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (of({"x": (X, {"y": X})}).batch(2), None),
        (of({"x": tf.ragged.constant([[1], [2, 3]])}).batch(2), None),
        (of((X, X)).map(lambda x, y: {"x": x, "y": y}).batch(2), None),
        (of(X), r'not TensorSpec.*; \.map\(lambda x, y: \{"x": x, "y": y\}\) makes one'),
        (of((X, X)), r"not \(TensorSpec"),
        (of({0: X}), "with strings as keys"),
        (of({"x": X}).window(2), "'x' in dataset 'trn' is not a tensor but DatasetSpec"),
        (
            of({"x": X}).map(lambda e: {**e, "y": {"z": None}}),
            "'y/z' in dataset 'trn' is not a tensor but None",
        ),
        (of({"x": X[:, 0]}), "gives single examples, not batches"),
        (of({"x": {"y": X}}).take(0), "is empty"),
        (5, "must give a tf.data.Dataset for 'trn', not int"),
    ],
)
def test_only_dicts_of_tensors_are_accepted(dataset: Any, message: str | None) -> None:
    if message is None:
        assert check_dataset(dataset, "trn") is dataset
        return
    with pytest.raises(DataError, match=message) as raised:
        check_dataset(dataset, "trn")
    assert "\n" not in str(raised.value)


def test_batch_size_is_that_of_the_first_tensor() -> None:
    assert int(batch_size({"s": tf.constant(1.0), "x": {"s": tf.constant(1), "y": (tf.zeros([3, 2]),)}})) == 3
    assert int(batch_size({"x": {"r": tf.ragged.constant([[1], [2, 3]])}})) == 2
    assert int(batch_size({"x": {"s": tf.sparse.from_dense(tf.eye(5))}})) == 5
    with pytest.raises(DataError, match="only scalars: the dataset must be batched"):
        batch_size({"x": tf.constant(1.0), "y": {"z": tf.constant(2.0)}})


BATCH: dict[str, Any] = {
    "x": {
        "ragged": tf.ragged.constant([[1], [], [2, 3], [4], [5], [6, 7, 8]]),
        "sparse": tf.sparse.from_dense(tf.eye(6)),
    },
    "pair": (tf.reshape(tf.range(12), [6, 2]), tf.constant(7)),
}


def rows(value: Any) -> list[Any]:
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_of_a_batch(parts: int) -> None:
    divided = [by_path(part) for part in split_batch(BATCH, parts)]
    first = by_path(first_part(BATCH, parts))
    assert len(divided) == parts and all(list(part) == list(by_path(BATCH)) for part in divided)
    for path, value in by_path(BATCH).items():
        assert rows(first[path]) == rows(divided[0][path])
        if path == "pair/1":
            assert all(part[path] == 7 for part in divided)
        else:
            assert [row for part in divided for row in rows(part[path])] == rows(value)


def test_uneven_parts() -> None:
    for value in (BATCH["pair"][0], *BATCH["x"].values()):
        with pytest.raises((DataError, tf.errors.InvalidArgumentError), match="not divide into 4 equal parts"):
            split_batch({"x": value}, 4)
    assert first_part({"x": tf.ones([2, 3])}, 4)["x"].shape == (1, 3)  # not empty


@tf.function
def in_two(batch: Any) -> Any:
    return split_batch(batch, 2)


def test_tensors_with_other_numbers_of_rows_are_not_divided() -> None:
    batch = {"x": tf.zeros([8, 2]), "negatives": tf.zeros([6, 2])}
    with pytest.raises(DataError, match="the rows of x, negatives are 8, 6"):
        split_batch(batch, 2)
    specs = {name: tf.TensorSpec([None, 2]) for name in batch}
    with pytest.raises(tf.errors.InvalidArgumentError, match="the rows of x, negatives are"):
        in_two.get_concrete_function(specs)(batch)


def test_limited_data() -> None:
    def datasets() -> dict[str, tf.data.Dataset]:
        return {"trn": tf.data.Dataset.range(10).shuffle(10).batch(4), "vld": tf.data.Dataset.range(10).batch(3)}

    def values(dataset: tf.data.Dataset) -> list[Any]:
        return [batch.tolist() for batch in dataset.as_numpy_iterator()]

    assert limited(datasets, limit=None, overfit=None) is datasets
    found = limited(datasets, limit=2, overfit=None)()
    assert values(found["vld"]) == [[0, 1, 2], [3, 4, 5]] and len(values(found["trn"])) == 2
    make = limited(datasets, limit=None, overfit=3)
    batches = values(make()["trn"])
    assert list(map(len, batches)) == [4, 4, 2] and int(make()["trn"].cardinality()) == 3
    assert values(make()["trn"]) == values(make()["vld"]) == batches
