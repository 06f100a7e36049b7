"""Features of a fixed dtype and shape: checking values, and making arrays of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError

Features: TypeAlias = Mapping[str, tuple[Any, Sequence[int]]]  # dtype (or its name) and shape of each
Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]  # by feature, of as many rows

CHUNK = 4096  # rows that are parsed and checked at once


class Column:
    """One feature, as a column of a table.

    Args:
        name: of the feature.
        dtype: an integer, a floating, `bool` or `string`.
        shape: fixed; () is a scalar.
        holds: what holds it, for the message.

    Raises:
        DataError: it has another dtype.
    """

    def __init__(self, name: str, dtype: Any, shape: Sequence[int], holds: str) -> None:
        self.name = name
        self.dtype: tf.DType = tf.as_dtype(dtype)
        self.shape = tuple(shape)
        self.is_text = self.dtype == tf.string
        self._types: tuple[type, ...] = {tf.bool: (bool,), tf.string: (str,)}.get(self.dtype) or (
            (int,) if self.dtype.is_integer else (int, float)
        )
        self.is_number = self._types[0] is int
        if self.is_number and not (self.dtype.is_integer or self.dtype.is_floating):
            raise DataError(f"{name!r}: {holds} no {self.dtype.name}; use an integer, a floating, bool or string")
        # Python's numbers compare with JSON integers of any size, NumPy's do not.
        number, bounds = self._types[-1], (self.dtype.min, self.dtype.max) if self.is_number else (0, 0)
        self.low, self.high = number(bounds[0]), number(bounds[1])

    @property
    def spec(self) -> tf.TensorSpec:
        """What the feature of one example looks like."""
        return tf.TensorSpec(self.shape, self.dtype)

    def problem(self, value: Any) -> str | None:
        """What is wrong with one value, or None."""
        if type(value) not in self._types:  # exactly: a bool is an int to Python
            return f"is not of type {self.dtype.name}"
        if isinstance(value, str):  # JSON can write half of a surrogate pair, which UTF-8 cannot hold
            return None if value.isascii() or value == value.encode("utf-8", "ignore").decode() else "is not Unicode"
        if isinstance(value, bool) or self.low <= value <= self.high:
            return None
        return f"does not fit into {self.dtype.name}" if abs(value) < math.inf else "is not finite"

    def check(self, values: Iterable[Any]) -> None:
        """Check values one by one.

        Raises:
            DataError: it says what is wrong with the first that is.
        """
        for value in values:
            if problem := self.problem(value):
                raise DataError(f"{self.name!r}: {short(value)} {problem}")

    def all_good(self, values: list[Any]) -> bool:
        """Whether nothing is wrong with any of the values, none of which is NaN or half of a surrogate pair."""
        if not set(map(type, values)) <= {*self._types}:
            return False
        return not (self.is_number and values) or (self.low <= min(values) and max(values) <= self.high)

    def array(self, values: list[Any], rows: int) -> np.ndarray[Any, Any]:
        """An array of values that were checked, in row-major order."""
        if self.is_text:  # as objects: a NumPy string drops the zero bytes at its end
            found = np.empty(len(values), object)
            found[:] = [value if isinstance(value, bytes) else value.encode() for value in values]
        else:
            found = np.array(values, dtype=self.dtype.as_numpy_dtype)
        return found.reshape((rows, *self.shape))


def columns_of(features: Features, holds: str) -> list[Column]:
    """The columns of features.

    Args:
        features: name -> (dtype, shape).
        holds: such as "JSON holds".
    """
    return [Column(name, dtype, shape, holds) for name, (dtype, shape) in features.items()]


def leaves(name: str, value: Any, shape: tuple[int, ...]) -> list[Any]:
    """The values in nested lists of exactly this shape, in row-major order."""
    if not shape:
        return [value]
    if not isinstance(value, list):
        raise DataError(f"{name!r}: {short(value)} is not a list of {shape[0]} values")
    if len(value) != shape[0]:
        raise DataError(f"{name!r} has {len(value)} values where {shape[0]} are expected")
    if len(shape) == 1:
        return value
    return [leaf for row in value for leaf in leaves(name, row, shape[1:])]


def leaves_of_all(values: list[Any], shape: tuple[int, ...]) -> list[Any] | None:
    """The values in many nested lists of exactly this shape; None if one has another."""
    for size in shape:
        if set(map(type, values)) - {list} or set(map(len, values)) - {size}:
            return None
        values = list(chain.from_iterable(values))
    return values


def short(value: Any) -> str:
    """A value in one line of at most 40 characters, as JSON has it."""
    text = "a nested list" if isinstance(value, list | dict) else json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
