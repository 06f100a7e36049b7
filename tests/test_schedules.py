"""Schedules equal plain Python arithmetic, eagerly and in a graph, up to step 2**31."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import schedules
from prototrain.config import Config
from prototrain.errors import ConfigError

BIG = 2**31
STEPS = [0, 1, 9, 10, 11, 99, 100, 101, 250, 999, 1000, 2**24 + 1, BIG - 1, BIG, BIG + 1]


def half_cosine(share: float, top: float, bottom: float) -> float:
    return bottom + (top - bottom) * (1 + math.cos(math.pi * share)) / 2


def between(step: int, points: list[tuple[int, float]]) -> float:
    return float(np.interp(step, [x for x, _ in points], [y for _, y in points]))


def warmed(step: int) -> float:
    target = half_cosine(min(max(step, 100), 1000) / 1000, 0.1, 0.0)
    return target if step >= 100 else 0.01 + (target - 0.01) * step / 100


POINTS = [(10, 1.0), (100, 3.0), (BIG, 0.0)]
CASES: list[tuple[schedules.Schedule, Callable[[int], float]]] = [
    (schedules.constant(0.25), lambda step: 0.25),
    (schedules.exponential(0.1, 0.95, 100), lambda step: 0.1 * 0.95 ** (step / 100)),
    (schedules.exponential(0.1, 0.95, 100, staircase=True), lambda step: 0.1 * 0.95 ** (step // 100)),
    (
        schedules.piecewise([10, 100, BIG], [4.0, 3.0, 2.0, 1.0]),
        lambda step: 4.0 - (step > 10) - (step > 100) - (step > BIG),
    ),
    (schedules.piecewise([], [7.0]), lambda step: 7.0),
    (schedules.linear(POINTS), lambda step: between(step, POINTS)),
    (schedules.linear([(5, 2.0)]), lambda step: 2.0),
    (schedules.cosine(0.1, 1000, 0.01), lambda step: half_cosine(min(step, 1000) / 1000, 0.1, 0.01)),
    (schedules.polynomial(0.1, 1000, power=2.0), lambda step: 0.1 * (1 - min(step, 1000) / 1000) ** 2),
    (schedules.warmup(schedules.cosine(0.1, 1000), 100, start=0.01), warmed),
    (schedules.warmup(schedules.constant(0.5), 0), lambda step: 0.5),
]


@pytest.mark.parametrize(("schedule", "expected"), CASES)
def test_values(schedule: schedules.Schedule, expected: Callable[[int], float]) -> None:
    in_graph = tf.function(schedule, input_signature=[tf.TensorSpec((), tf.int64)])
    for step in STEPS:
        eager = schedule(step)
        assert eager.dtype == tf.float32 and eager.shape == ()
        np.testing.assert_allclose(eager, expected(step), rtol=1e-6, atol=1e-12, err_msg=f"step {step}")
        # The same bits, so that a resumed run is exact.
        assert eager.numpy() == schedule(tf.constant(step, tf.int64)).numpy()
        assert eager.numpy() == in_graph(tf.constant(step, tf.int64)).numpy()


def test_boundaries_and_integer_types() -> None:
    assert schedules.warmup(schedules.constant(0.1), 7)(7).numpy() == np.float32(0.1)
    assert schedules.linear([(0, 0.0), (7, 0.1)])(7).numpy() == np.float32(0.1)
    far = schedules.linear([(BIG - 2, 0.0), (BIG, 1.0)])  # in float32 these would be the same step
    assert [far(step).numpy() for step in (BIG - 2, BIG - 1, BIG)] == [0.0, 0.5, 1.0]
    half = schedules.exponential(1.0, 0.5, 10)
    for step in (10, np.int64(10), np.int32(10), tf.constant(10, tf.int32), tf.Variable(10, dtype=tf.int64)):
        assert half(step).numpy() == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.exponential(0.1, 0.0, 10), "decay_rate must be above 0, got 0.0"),
        (lambda: schedules.piecewise([1, 2], [1, 2]), "one more value than boundaries, got 2 and 2"),
        (lambda: schedules.linear([(1, 1.0), (1, 2.0)]), "must increase"),
        (lambda: from_config("linear", linear__steps=[1, 2], linear__values=[1.0]), "as many .values as .steps, got 1"),
    ],
)
def test_wrong_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def from_config(method: str, **keys: Any) -> Any:
    values = {f"model.lr_schedule.{key.replace('__', '.')}": entry for key, entry in keys.items()}
    return schedules.from_config(Config({"model.num_steps": 20, "model.lr_schedule.method": method, **values}))


@pytest.mark.parametrize(
    ("method", "keys", "step", "value"),
    [
        ("constant", {"constant__value": 0}, 3, 0.0),
        ("exp", {"exp__value": 1, "exp__decay_rate": 0.25, "exp__decay_steps": 10}, 5, 0.5),
        ("step", {"step__boundaries": [10], "step__values": [1, 0.5]}, 11, 0.5),
        ("custom", {"custom__fn": lambda step: tf.cast(step, tf.float64) / 4}, 1, 0.25),
        ("custom", {"custom__fn": lambda step: 0.5 / (1 + step)}, 1, 0.25),
        ("cosine", {"cosine__value": 0.5, "cosine__decay_steps": 8}, 4, 0.25),
        ("cosine", {"cosine__value": 0.5, "cosine__final": 0.125}, 100, 0.125),
        ("polynomial", {"polynomial__value": 1.0, "polynomial__power": 2.0}, 10, 0.25),
        ("linear", {"linear__steps": [0, 4], "linear__values": [0.0, 1.0]}, 1, 0.25),
        ("constant", {"constant__value": 1.0, "warmup_steps": 4, "warmup_start": 0.5}, 2, 0.75),
    ],
)
def test_from_config(method: str, keys: dict[str, Any], step: int, value: float) -> None:
    schedule = from_config(method, **keys)
    for result in (schedule(step), tf.function(schedule)(tf.constant(step, tf.int64))):
        assert (result.dtype, result.shape, result.numpy()) == (tf.float32, (), value)


def test_from_config_with_missing_keys() -> None:
    assert schedules.from_config(Config({"model.lr_schedule.constant.value": 0.1})) is None
    for method in ("constant", "exp", "step", "custom", "cosine", "linear"):
        with pytest.raises(ConfigError, match=rf"model\.lr_schedule\.{method}\.\w+ is not set"):
            from_config(method)


@pytest.mark.parametrize("result", [None, [0.1, 0.2], "fast", True])
def test_custom_schedule_must_return_a_scalar(result: Any) -> None:
    with pytest.raises(ConfigError, match=r"custom\.fn: must return a scalar number, got "):
        from_config("custom", custom__fn=lambda step: result)(0)
