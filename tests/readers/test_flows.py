from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.errors import DataError


class Flow:
    """A tensorpack DataFlow."""

    def __init__(self, points: list[Any], length: int | None) -> None:
        self.points, self.length, self.resets = points, length, 0

    def reset_state(self) -> None:
        self.resets += 1

    def __len__(self) -> int:
        if self.length is None:
            raise NotImplementedError
        return self.length

    def __iter__(self) -> Iterator[Any]:
        assert self.resets == 1
        yield from self.points


@pytest.mark.parametrize(
    ("points", "options", "names"),
    [
        ([[np.float32([1, 2]), 3], [np.float32([4, 5]), 6]], {"names": ["a", "b"]}, ["a", "b"]),
        ([(np.float32([1, 2]), 3), (np.float32([4, 5]), 6)], {}, ["x", "y"]),
        ([{"x": np.float32([1, 2]), "y": 3}, {"x": np.float32([4, 5]), "y": 6}], {"names": ["y"]}, ["y"]),
        ([{"y": np.arange(3)}, {"y": np.arange(2)}], {"batched": True}, ["y"]),
        ([{"y": "text"}, {"y": b"longer text"}], {}, ["y"]),
        ([([[1.5, 2.5]], (1, 2)), ([[3.5, 4.5]], (3, 4))], {}, ["x", "y"]),
    ],
)
def test_dataflow(points: list[Any], options: dict[str, Any], names: list[str]) -> None:
    dataset = readers.dataflow(Flow(points, len(points)), **options)
    assert list(dataset.element_spec) == names and int(dataset.cardinality()) == len(points)
    for _ in range(2):
        for point, element in zip(points, dataset.as_numpy_iterator(), strict=True):
            given = point if isinstance(point, dict) else dict(zip(names, point, strict=True))
            for name in names:
                expected = given[name].encode() if isinstance(given[name], str) else given[name]
                np.testing.assert_array_equal(element[name], expected)


def test_dataflow_without_length() -> None:
    assert int(readers.dataflow(Flow([[1]], None)).cardinality()) == tf.data.UNKNOWN_CARDINALITY
    with pytest.raises(DataError, match="list_iterator can be read once only"):
        readers.dataflow(iter([[1]]), names=["x"])
    with pytest.raises(DataError, match="a tuple of 4 does not fit the names: up to three are x, y, sample_weight"):
        readers.dataflow(Flow([[1, 2, 3, 4]], None))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2**40 + 7, "int32"), (300, "int8"), (1e30, "float16"), (0.5, "int32"), ("a", "int32"), (2, "bool")],
)
def test_values_that_the_dtype_cannot_hold(value: Any, dtype: str) -> None:
    spec = {"x": tf.TensorSpec([], dtype)}
    with pytest.raises(tf.errors.OpError, match=f"a data point of Flow .* {dtype}"):
        list(readers.dataflow(Flow([{"x": 1}, {"x": value}], None), spec=spec))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.array(1.5, tf.bfloat16.as_numpy_dtype), "float32"), (1.5 + 0.5j, "complex64"), (0.1, "complex64")],
)
def test_values_that_are_rounded(value: Any, dtype: str) -> None:
    spec = {"x": tf.TensorSpec([], dtype)}
    (found,) = readers.dataflow(Flow([{"x": value}], None), spec=spec)
    assert found["x"].dtype == dtype and abs(complex(found["x"].numpy()) - complex(np.asarray(value))) < 1e-6


def test_spec() -> None:
    points = [{"x": np.zeros(4), "y": 1}, {"x": np.zeros(5), "y": 0.5}]
    spec = {"x": tf.TensorSpec([None], tf.float32), "y": tf.TensorSpec([], tf.float32)}
    found = list(readers.dataflow(Flow(points, None), spec=spec).as_numpy_iterator())
    assert [len(item["x"]) for item in found] == [4, 5] and [item["y"] for item in found] == [1.0, 0.5]
