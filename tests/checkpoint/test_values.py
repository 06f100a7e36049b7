"""JSON forms of plain values and random generators: exact, or refused."""

from __future__ import annotations

import enum
import json
import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.checkpoint.values import decode, encode
from prototrain.errors import CheckpointError

SCALARS = [
    *(np.dtype(name).type(3) for name in ("int8", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float32")),
    *(np.float64(0.1), np.longdouble("1.1"), np.complex64(1 - 2j), np.bool_(True), np.str_("äb"), np.bytes_(b"a\0b")),
    *(np.datetime64("2020-01-01T10"), np.timedelta64(3, "s"), tf.bfloat16.as_numpy_dtype(1.5), np.float32("-nan")),
]
ARRAYS = [
    *(np.array([scalar, scalar]) for scalar in SCALARS),
    *(np.zeros([0]), np.zeros([2, 0], np.int8), np.array(3.5), np.array([1.5], ">f8"), np.array(["ab", "c"])),
    *(np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(10)[::3], np.zeros(0, "U3")),
]
PLAIN: list[Any] = [
    *(None, True, 1, -0.0, 0.1, float("inf"), 10**40, "text", "a\ud800\u2028"),
    *([], [1, [2.5, None]], {}, {"a": {"b": []}}),
]
TAGGED: list[Any] = [
    *((), (1, (2, [3])), [(1, 2)], {"a": (1,)}, b"a\0\xff"),
    *({1: "a", 0: "b"}, {(1, "x"): 2}, {None: 1, True: 2, 2.5: 3}, {np.int64(3): 1}, {"z": 1, "a": np.float32(2)}),
    *({"prototrain:tuple": [1]}, {"prototrain:stored": {"prototrain:array": 1}}, {1: {"prototrain:bytes": "AA=="}}),
    *({"mean": np.zeros(3), "n": [np.uint8(1)]}, [np.zeros([2, 2], np.float16)]),
]


def assert_same(found: Any, expected: Any) -> None:
    """Check that two values have the same types, bits and order at every level."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert len(found) == len(expected)
        for one, other in zip(found.items(), expected.items(), strict=True):
            assert_same(one, other)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected and (expected != 0 or str(found) == str(expected))


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, "x"))))


@pytest.mark.parametrize("value", [*SCALARS, *ARRAYS, *PLAIN, *TAGGED], ids=lambda value: type(value).__name__)
def test_round_trip(value: Any) -> None:
    assert_same(through_json(value), value)
    assert_same(through_json({"in": [value]}), {"in": [value]})


@pytest.mark.parametrize("value", ARRAYS)
def test_arrays_are_writable_and_keep_their_layout(value: np.ndarray[Any, Any]) -> None:
    found = through_json(value)
    assert found.flags.writeable and found.flags.fnc == value.flags.fnc


class Kind(enum.IntEnum):
    ONE = 1


Point = namedtuple("Point", "x y")
REFUSED = [
    *(tf.zeros([2]), tf.Variable(1.0), random.Random(1), defaultdict(int), OrderedDict(a=1), Counter("ab"), {1, 2}),
    *(frozenset({1}), deque([1]), Point(1, 2), Kind.ONE, np.array([None, 1]), np.zeros(2, [("a", "f4")])),
    *(np.ma.masked_array([1.0], [True]), np.void(b"1234"), object(), 10**5000, 1 - 2j),
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_inexact_values_are_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"^x cannot be saved: .* cannot be restored unchanged; use ") as caught:
        encode(value, "x")
    assert type(value).__name__ in str(caught.value) and "\n" not in str(caught.value)
