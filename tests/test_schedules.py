"""Tests of the schedules against plain Python arithmetic, eagerly and in a graph, up to step 2**31."""

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


def restarts(step: int, top: float, period: int, factor: int, shrink: float, bottom: float) -> float:
    while step >= period:
        if factor == 1:
            return half_cosine(step % period / period, top * shrink ** (step // period), bottom)
        step, period, top = step - period, period * factor, top * shrink
    return half_cosine(step / period, top, bottom)


def between(step: int, points: list[tuple[int, float]]) -> float:
    return float(np.interp(step, [x for x, _ in points], [y for _, y in points]))


POINTS = [(10, 1.0), (100, 3.0), (BIG, 0.0)]
CASES: dict[str, tuple[schedules.Schedule, Callable[[int], float]]] = {
    "constant": (schedules.constant(0.25), lambda step: 0.25),
    "exponential": (schedules.exponential(0.1, 0.95, 100), lambda step: 0.1 * 0.95 ** (step / 100)),
    "staircase": (
        schedules.exponential(0.1, 0.95, 100, staircase=True),
        lambda step: 0.1 * 0.95 ** (step // 100),
    ),
    "piecewise": (
        schedules.piecewise([10, 100, BIG], [4.0, 3.0, 2.0, 1.0]),
        lambda step: 4.0 - (step > 10) - (step > 100) - (step > BIG),
    ),
    "piecewise without boundaries": (schedules.piecewise([], [7.0]), lambda step: 7.0),
    "linear": (schedules.linear(POINTS), lambda step: between(step, POINTS)),
    "linear with one point": (schedules.linear([(5, 2.0)]), lambda step: 2.0),
    "cosine": (schedules.cosine(0.1, 1000, 0.01), lambda step: half_cosine(min(step, 1000) / 1000, 0.1, 0.01)),
    "restarts": (schedules.cosine_restarts(0.1, 100), lambda step: restarts(step, 0.1, 100, 1, 1.0, 0.0)),
    "shrinking restarts": (
        schedules.cosine_restarts(0.1, 100, initial_factor=0.9, final=0.01),
        lambda step: restarts(step, 0.1, 100, 1, 0.9, 0.01),
    ),
    "growing restarts": (
        schedules.cosine_restarts(0.1, 10, period_factor=2, initial_factor=0.8),
        lambda step: restarts(step, 0.1, 10, 2, 0.8, 0.0),
    ),
    "warmup": (
        schedules.warmup(schedules.cosine(0.1, 1000), 100, start=0.01),
        lambda step: (
            0.01 + (half_cosine(0.1, 0.1, 0.0) - 0.01) * step / 100
            if step < 100
            else half_cosine(min(step, 1000) / 1000, 0.1, 0.0)
        ),
    ),
    "no warmup": (schedules.warmup(schedules.constant(0.5), 0), lambda step: 0.5),
}


@pytest.mark.parametrize(("schedule", "expected"), CASES.values(), ids=CASES)
def test_values(schedule: schedules.Schedule, expected: Callable[[int], float]) -> None:
    in_graph = tf.function(schedule, input_signature=[tf.TensorSpec((), tf.int64)])
    for step in STEPS:
        eager = schedule(step)
        assert eager.dtype == tf.float32
        assert eager.shape == ()
        np.testing.assert_allclose(eager, expected(step), rtol=1e-6, atol=1e-12, err_msg=f"step {step}")
        # Exactly the same bits, or a resumed run would not be exact.
        assert eager.numpy() == schedule(tf.constant(step, tf.int64)).numpy()
        assert eager.numpy() == in_graph(tf.constant(step, tf.int64)).numpy()


def test_steps_of_any_integer_type() -> None:
    schedule = schedules.exponential(1.0, 0.5, 10)
    for step in (10, np.int64(10), np.int32(10), tf.constant(10, tf.int32), tf.Variable(10, dtype=tf.int64)):
        assert schedule(step).numpy() == 0.5


def test_joints_are_exact() -> None:
    assert schedules.warmup(schedules.constant(0.1), 7)(7).numpy() == np.float32(0.1)
    assert schedules.linear([(0, 0.0), (7, 0.1)])(7).numpy() == np.float32(0.1)
    restart = schedules.cosine_restarts(0.1, 3, period_factor=3)
    for start in (0, 3, 12, 39, 3 * (3**18 - 1) // 2):
        assert restart(start).numpy() == np.float32(0.1)


def test_neighbouring_steps_differ_far_out() -> None:
    """In float32 both steps would be the same number."""
    schedule = schedules.linear([(BIG - 2, 0.0), (BIG, 1.0)])
    assert [schedule(step).numpy() for step in (BIG - 2, BIG - 1, BIG)] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.exponential(0.1, 0.0, 10), "decay_rate must be above 0, got 0.0"),
        (lambda: schedules.exponential(0.1, 0.5, 0), "decay_steps must be at least 1, got 0"),
        (lambda: schedules.piecewise([1, 1], [1, 2, 3]), "boundaries must increase"),
        (lambda: schedules.piecewise([1, 2], [1, 2]), "one more value than boundaries, got 2 and 2"),
        (lambda: schedules.linear([]), "at least one"),
        (lambda: schedules.linear([(1, 1.0), (1, 2.0)]), "must increase"),
        (lambda: schedules.cosine(0.1, 0), "decay_steps must be at least 1"),
        (lambda: schedules.cosine_restarts(0.1, 0), "first_period must be a whole number"),
        (lambda: schedules.cosine_restarts(0.1, 1, period_factor=1.5), "period_factor must be a whole number"),  # type: ignore[arg-type]
        (lambda: schedules.warmup(schedules.constant(1.0), -1), "steps must be at least 0"),
    ],
)
def test_wrong_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("method", "keys", "step", "value"),
    [
        ("constant", {"constant.value": 0.5}, 3, 0.5),
        ("constant", {"constant.value": 0}, 3, 0.0),
        ("exp", {"exp.value": 1, "exp.decay_rate": 0.25, "exp.decay_steps": 10}, 5, 0.5),
        ("step", {"step.boundaries": [10], "step.values": [1, 0.5]}, 10, 1.0),
        ("step", {"step.boundaries": [10], "step.values": [1, 0.5]}, 11, 0.5),
        ("custom", {"custom.fn": lambda step: 1 / (step + 1)}, 1, 0.5),
        ("custom", {"custom.fn": lambda step: 3}, 1, 3.0),
        ("custom", {"custom.fn": lambda step: tf.cast(step, tf.float64) / 4}, 1, 0.25),
        ("cosine", {"cosine.value": 0.5, "cosine.decay_steps": 8}, 4, 0.25),
        ("cosine", {"cosine.value": 0.5, "cosine.final": 0.125}, 100, 0.125),
        ("polynomial", {"polynomial.value": 1.0, "polynomial.power": 2.0}, 10, 0.25),
        ("polynomial", {"polynomial.value": 1.0, "polynomial.decay_steps": 4, "polynomial.final": 0.5}, 9, 0.5),
        ("linear", {"linear.steps": [0, 4], "linear.values": [0.0, 1.0]}, 1, 0.25),
        ("constant", {"constant.value": 1.0, "warmup_steps": 4, "warmup_start": 0.5}, 2, 0.75),
    ],
)
def test_from_config(method: str, keys: dict[str, Any], step: int, value: float) -> None:
    values = {f"model.lr_schedule.{key}": entry for key, entry in keys.items()}
    schedule = schedules.from_config(Config({"model.num_steps": 20, "model.lr_schedule.method": method, **values}))
    assert schedule is not None
    for result in (schedule(step), tf.function(schedule)(tf.constant(step, tf.int64))):
        assert result.dtype == tf.float32
        assert result.shape == ()
        assert result.numpy() == value


def test_from_config_without_a_method() -> None:
    assert schedules.from_config(Config({"model.lr_schedule.constant.value": 0.1})) is None


@pytest.mark.parametrize("method", ["constant", "exp", "step", "custom", "cosine", "linear"])
def test_from_config_with_missing_keys(method: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.lr_schedule\.{method}\.\w+ is not set"):
        schedules.from_config(Config({"model.lr_schedule.method": method}))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "got NoneType"),
        ([0.1, 0.2], r"got shape \(2,\) and type float32"),
        ("fast", r"got shape \(\) and type string"),
        (True, r"got shape \(\) and type bool"),
        (1j, r"got shape \(\) and type complex128"),
        ({"a": 1}, "got dict"),
    ],
)
def test_a_custom_schedule_that_is_no_scalar(result: Any, message: str) -> None:
    config = Config({"model.lr_schedule.method": "custom", "model.lr_schedule.custom.fn": lambda step: result})
    schedule = schedules.from_config(config)
    assert schedule is not None
    with pytest.raises(ConfigError, match=r"custom\.fn: must return a scalar number, " + message):
        schedule(0)
