"""Functions of many objects, as many evaluations in one process have them."""

from __future__ import annotations

import pytest
import tensorflow as tf

from prototrain.step.compiled import compiled


def test_tracings_are_counted_for_each_object(caplog: pytest.LogCaptureFixture) -> None:
    class Sum:
        def __init__(self, more: float) -> None:
            self._more = more
            self.call = compiled(self._run)

        def _run(self, value: tf.Tensor) -> tf.Tensor:
            return value + self._more

    assert [float(Sum(more).call(tf.constant(1.0))) for more in range(8)] == [1.0 + more for more in range(8)]
    assert not caplog.records
