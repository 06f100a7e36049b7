"""What a batch may be, and how what is in it is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.data.batches import (
    at_path,
    batch_size,
    by_path,
    check_dataset,
    first_part,
    from_paths,
    has_path,
    split_batch,
)
from prototrain.errors import DataError

X = np.ones([4, 2], np.float32)
NESTED = {"user": {"pair": (X, 2 * X), "age": X[:, 0]}, "step": np.float32(3), "a/b": X}


def of(elements: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(elements)


@pytest.mark.parametrize(
    "dataset",
    [of({"x": X}), of({"x": {"y": {"z": X}}}), of({"x": (X, {"y": X})}), of({"x": tf.ragged.constant([[1], [2, 3]])})],
)
def test_dicts_to_any_depth_are_taken(dataset: tf.data.Dataset) -> None:
    assert check_dataset(dataset.batch(2), "trn").element_spec["x"] is not None


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (tf.data.Dataset.range(4), r'not a tensor; \.map\(lambda x: \{"x": x\}\) makes one'),
        (of(X), r'not a tensor; \.map\(lambda x: \{"x": x\}\) makes one'),
        (of([1, 2]), "not a tensor"),
        (of(tf.ragged.constant([[1], [2, 3]])), "not a tensor"),
        (of((X, X)), r'not a tuple of 2; \.map\(lambda x, y: \{"x": x, "y": y\}\) makes one'),
        (of(({"x": X}, X)), "not a tuple of 2"),
        (of((X, X, X)), r"lambda x, y, weights: "),
        (of((X, X, X, X)), r"lambda x0, x1, x2, x3: "),
        (of({0: X}), "must have a text for its name, not 0"),
        (of({"x": {0: X}}), "must have a text for its name, not 0"),
        (of({"x": ({0: X},)}), "must have a text for its name, not 0"),
        (of({"x": X}).window(2), "'x' in dataset 'trn' is a dataset, not a tensor"),
        (of({"x": X}).map(lambda e: {**e, "y": {"z": None}}), "'y/z' in dataset 'trn' is NoneTensor, not a tensor"),
        (of({"x": {"y": X}}).take(0), "is empty"),
        (5, "must give a tf.data.Dataset for 'trn', not int"),
        (None, "not NoneType"),
    ],
)
def test_anything_else_is_one_clear_line(dataset: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        check_dataset(dataset, "trn")
    assert "\n" not in str(raised.value)


def test_the_example_in_a_message_makes_what_is_wanted() -> None:
    check_dataset(of((X, X)).map(lambda x, y: {"x": x, "y": y}), "trn")


def test_paths() -> None:
    assert list(by_path(NESTED)) == ["user/pair/0", "user/pair/1", "user/age", "step", "a/b"]
    assert at_path(NESTED, "user/pair/1") is NESTED["user"]["pair"][1]  # type: ignore[index]
    assert at_path(NESTED, "a/b") is X and at_path(NESTED, "user") is NESTED["user"]
    for wrong in ("pair", "user/", "user/pair/2", "user/age/0", "a", "/user", ""):
        assert not has_path(NESTED, wrong)


@pytest.mark.parametrize("names", [[*by_path(NESTED)], [*NESTED], ["user/age", "user/pair/1", "user/pair/0"], ["step"]])
def test_a_part_of_a_batch_is_made_of_paths(names: list[str]) -> None:
    made = from_paths({name: at_path(NESTED, name) for name in names}, NESTED)
    for path, value in by_path(made).items():
        assert at_path(NESTED, path) is value
    wanted = {path for path in by_path(NESTED) for name in names if f"{path}/".startswith(f"{name}/")}
    assert by_path(made).keys() == wanted


def test_of_a_tuple_all_is_needed() -> None:
    with pytest.raises(KeyError):
        from_paths({"user/pair/0": X}, NESTED)


def test_the_number_of_examples_is_that_of_the_first_tensor_that_has_any() -> None:
    assert int(batch_size({"s": tf.constant(1.0), "x": {"s": tf.constant(1), "y": (tf.zeros([3, 2]),)}})) == 3
    assert int(batch_size({"x": {"r": tf.ragged.constant([[1], [2, 3]])}})) == 2
    assert int(batch_size({"x": {"s": tf.sparse.from_dense(tf.eye(5))}})) == 5
    with pytest.raises(DataError, match="only scalars: the dataset must be batched"):
        batch_size({"x": tf.constant(1.0), "y": {"z": tf.constant(2.0)}})


def test_dividing_keeps_the_structure() -> None:
    ragged, sparse = tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense(tf.eye(2))
    batch = {"x": {"r": ragged, "pair": (tf.constant([[1], [2]]), tf.constant(7))}, "s": sparse}
    parts = split_batch(batch, 2)
    assert [part["x"]["r"].to_list() for part in parts] == [[[1]], [[2, 3]]]
    assert [[value.numpy().tolist() for value in part["x"]["pair"]] for part in parts] == [[[[1]], 7], [[[2]], 7]]
    assert [tf.sparse.to_dense(part["s"]).numpy().tolist() for part in parts] == [[[1, 0]], [[0, 1]]]
    assert list(parts[0]) == list(batch) and list(parts[0]["x"]) == ["r", "pair"]
    assert first_part(batch, 2)["x"]["pair"][0].numpy().tolist() == [[1]]
