"""Traced functions and direct calls of them."""

from __future__ import annotations

import pytest
import tensorflow as tf

from prototrain.step.functions import ConcreteCall, compiled


def read_and_add(total: tf.Variable) -> ConcreteCall:
    def function(iterator: tf.data.Iterator, n: tf.Tensor) -> dict[str, tf.Tensor]:
        for _ in range(2):
            total.assign_add(next(iterator) * n)
        return {"total": total.read_value(), "n": n}

    return ConcreteCall(function)


def test_it_does_what_the_function_does() -> None:
    total = tf.Variable(0, dtype=tf.int64)
    call = read_and_add(total)
    iterator = iter(tf.data.Dataset.range(1, 10))
    for expected in (30, 100):
        results = call(iterator, tf.constant(10, tf.int64))
        assert call.pack(results)["total"].numpy() == total.numpy() == expected
    other = iter(tf.data.Dataset.range(100, 110))
    assert call.pack(call(other, tf.constant(1, tf.int64)))["total"].numpy() == 100 + 100 + 101


def test_tracings_are_counted_for_each_object(caplog: pytest.LogCaptureFixture) -> None:
    class Sum:
        def __init__(self, more: float) -> None:
            self._more = more
            self.call = compiled(self._run)

        def _run(self, value: tf.Tensor) -> tf.Tensor:
            return value + self._more

    assert [float(Sum(more).call(tf.constant(1.0))) for more in range(8)] == [1.0 + more for more in range(8)]
    assert not caplog.records
