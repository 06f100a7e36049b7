"""Which values count as finite in a state."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.checkpoint.state import FiniteState, not_finite

VALUES: list[tuple[Any, str | None]] = [
    (tf.Variable([1.0, math.nan]), "NaN"),
    (tf.Variable([math.inf, math.nan], dtype=tf.float16), "NaN"),
    (tf.constant([-math.inf], tf.bfloat16), "infinite"),
    (np.array([1.0, -math.inf]), "infinite"),
    (np.array([complex(0.0, math.inf)]), "infinite"),
    (keras.Variable(np.array([math.nan])), "NaN"),
    (tf.Variable(3e38), None),
    (tf.Variable(np.zeros([0, 3])), None),
    (tf.Variable([2**31 - 1]), None),
    (tf.Variable([True]), None),
    (tf.Variable(["nan"]), None),
]


@pytest.mark.parametrize(("value", "kind"), VALUES)
def test_each_dtype(value: Any, kind: str | None) -> None:
    assert not_finite({"x": value}) == ({} if kind is None else {"x": kind})


@pytest.mark.parametrize(
    ("first", "later", "found"),
    [
        (0.0, math.inf, "infinite"),
        (0.0, math.nan, "NaN"),
        (-math.inf, math.inf, None),
        (-math.inf, math.nan, "NaN"),
        (math.nan, math.inf, None),
        (math.nan, math.nan, None),
    ],
)
def test_non_finite_from_the_start_is_ignored(first: float, later: float, found: str | None) -> None:
    state = FiniteState()
    state.begin({"x": np.array(first)})
    assert state.find({"x": np.array(later)}) == ({} if found is None else {"x": found})
    # Another run in the same process starts from these values and is refused, too.
    assert state.begin({"x": np.array(later), "y": np.array(math.inf)}) == {"y": "infinite"}
    assert state.find({"x": np.array(later)}) == ({} if found is None else {"x": found})
