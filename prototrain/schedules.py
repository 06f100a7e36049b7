"""Learning-rate schedules.

Each function returns a schedule: a pure function that takes the number of completed steps, a Python int or an integer
scalar tensor, and returns a float32 scalar tensor. It works eagerly and inside a graph. It computes with int64 and
float64, since float32 cannot distinguish neighboring steps beyond 2**24. Arguments out of range raise ConfigError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import tensorflow as tf

from prototrain.config import Config
from prototrain.errors import ConfigError

Schedule = Callable[[Any], tf.Tensor]
"""A function from the step (an int or an integer scalar tensor) to a float32 scalar tensor."""


def constant(value: float) -> Schedule:
    """Return a schedule with the same `value` at every step."""

    def schedule(step: Any) -> tf.Tensor:
        return tf.constant(value, tf.float32)

    return schedule


def exponential(value: float, decay_rate: float, decay_steps: int, *, staircase: bool = False) -> Schedule:
    """Exponential decay: `value * decay_rate ** (step / decay_steps)`.

    Args:
        value: the value at step 0.
        decay_rate: the factor per `decay_steps` steps, above 0.
        decay_steps: the number of steps, at least 1.
        staircase: whether to round the exponent down.
    """
    _require(decay_rate > 0, f"exponential: decay_rate must be above 0, got {decay_rate}")
    _require(decay_steps >= 1, f"exponential: decay_steps must be at least 1, got {decay_steps}")

    def schedule(step: Any) -> tf.Tensor:
        now = _int64(step)
        exponent = tf.cast(now // decay_steps, tf.float64) if staircase else tf.cast(now, tf.float64) / decay_steps
        return tf.cast(value * tf.pow(tf.constant(decay_rate, tf.float64), exponent), tf.float32)

    return schedule


def piecewise(boundaries: Sequence[int], values: Sequence[float]) -> Schedule:
    """Piecewise constant: `values[0]` while step <= `boundaries[0]`, `values[1]` while step <= `boundaries[1]`, etc.

    A boundary belongs to the value before it, as in TensorFlow 1's `piecewise_constant` and in Keras.
    """
    _require(all(a < b for a, b in pairwise(boundaries)), f"piecewise: boundaries must increase, got {boundaries}")
    numbers = f"got {len(values)} and {len(boundaries)}"
    _require(len(values) == len(boundaries) + 1, f"piecewise: needs one more value than boundaries, {numbers}")

    def schedule(step: Any) -> tf.Tensor:
        return tf.gather(tf.constant(values, tf.float32), _passed(boundaries, _int64(step) - 1))

    return schedule


def linear(points: Iterable[tuple[int, float]]) -> Schedule:
    """Linear interpolation between `(step, value)` points; constant before the first and after the last point."""
    points = list(points)
    steps, values = [step for step, _ in points], [float(value) for _, value in points]
    _require(bool(points), "linear: needs at least one (step, value) point")
    _require(all(a < b for a, b in pairwise(steps)), f"linear: the points' steps must increase, got {steps}")

    def schedule(step: Any) -> tf.Tensor:
        # Add a point on either side with the end value, so that every step lies between two points.
        xs = tf.constant([steps[0] - 1, *steps, steps[-1] + 1], tf.int64)
        ys = tf.constant([values[0], *values, values[-1]], tf.float64)
        now = tf.clip_by_value(_int64(step), xs[0], xs[-1])
        left = _passed(steps, now)
        share = tf.cast(now - xs[left], tf.float64) / tf.cast(xs[left + 1] - xs[left], tf.float64)
        return tf.cast(ys[left] + (ys[left + 1] - ys[left]) * share, tf.float32)

    return schedule


def cosine(initial: float, decay_steps: int, final: float = 0.0) -> Schedule:
    """Cosine decay from `initial` at step 0 to `final` at `decay_steps`, constant afterwards.

    `final + (initial - final) * (1 + cos(pi * step / decay_steps)) / 2`: one cycle of SGDR (arXiv:1608.03983, eq. 5).
    """
    _require(decay_steps >= 1, f"cosine: decay_steps must be at least 1, got {decay_steps}")

    def schedule(step: Any) -> tf.Tensor:
        factor = (1.0 + tf.cos(math.pi * _share(step, decay_steps))) / 2.0
        return tf.cast(final + (initial - final) * factor, tf.float32)

    return schedule


def polynomial(initial: float, decay_steps: int, final: float = 0.0, power: float = 1.0) -> Schedule:
    """Polynomial decay from `initial` at step 0 to `final` at `decay_steps`, constant afterwards; linear for `power` 1.

    `final + (initial - final) * (1 - step / decay_steps) ** power`: "poly" of DeepLab (arXiv:1606.00915, section 4.1).
    """
    _require(decay_steps >= 1, f"polynomial: decay_steps must be at least 1, got {decay_steps}")
    _require(power > 0, f"polynomial: power must be above 0, got {power}")

    def schedule(step: Any) -> tf.Tensor:
        left = 1.0 - _share(step, decay_steps)
        return tf.cast(final + (initial - final) * tf.pow(left, tf.constant(power, tf.float64)), tf.float32)

    return schedule


def warmup(schedule: Schedule, steps: int, start: float = 0.0) -> Schedule:
    """Linear warm-up from `start` at step 0 to `schedule(steps)` at `steps`, followed by `schedule`, without a shift.

    This is the gradual warm-up of arXiv:1706.02677, section 2.2.
    """
    _require(steps >= 0, f"warmup: steps must be at least 0, got {steps}")
    if steps == 0:
        return schedule

    def warmed(step: Any) -> tf.Tensor:
        target = tf.cast(schedule(tf.maximum(_int64(step), steps)), tf.float64)
        share = _share(step, steps)
        # In this form, a share of 1 gives exactly the schedule's value.
        return tf.cast(start * (1.0 - share) + target * share, tf.float32)

    return warmed


def from_config(config: Config) -> Schedule | None:
    """Return the schedule that `model.lr_schedule.*` describes, or None if no method is set.

    Raises:
        ConfigError: a key that the method needs is not set, or its values are wrong.
    """
    method = config.get("model.lr_schedule.method")
    if method is None:
        return None
    schedule, steps = _of_method(config, method), config["model.lr_schedule.warmup_steps"]
    return warmup(schedule, steps, config["model.lr_schedule.warmup_start"]) if steps else schedule


def _of_method(config: Config, method: str) -> Schedule:
    prefix = f"model.lr_schedule.{method}"

    def values(*names: str) -> list[Any]:
        return [config[f"{prefix}.{name}"] for name in names]

    def decay(make: Callable[..., Schedule], *more: Any) -> Schedule:
        value, steps, final = values("value", "decay_steps", "final")
        if steps is not None:
            return make(value, steps, final, *more)

        def schedule(step: Any) -> Any:  # the length of the run is only known when it begins
            return make(value, max(1, config.total_steps()), final, *more)(step)

        if config.get("model.num_epochs") is None:
            schedule(0)  # raises an error if a value is wrong
        return schedule

    match method:
        case "constant":
            return constant(*values("value"))
        case "exp":
            return exponential(*values("value", "decay_rate", "decay_steps"), staircase=config[f"{prefix}.staircase"])
        case "step":
            return piecewise(*values("boundaries", "values"))
        case "cosine":
            return decay(cosine)
        case "polynomial":
            return decay(polynomial, *values("power"))
        case "linear":
            steps, rates = values("steps", "values")
            _require(len(steps) == len(rates), f"{prefix}: needs as many .values as .steps, got {len(rates)}")
            return linear(list(zip(steps, rates, strict=True)))
    function = config[f"{prefix}.fn"]

    def custom(step: Any) -> tf.Tensor:
        return value_at(function, _int64(step), f"{prefix}.fn")

    return custom


def value_at(schedule: Callable[[Any], Any], step: tf.Tensor, name: str) -> tf.Tensor:
    """Return the value of a user's schedule at an int64 step, a float32 scalar.

    The step becomes float64 if the schedule cannot compute with int64.

    Raises:
        ConfigError: the value is not a scalar number; names the schedule.
    """
    try:
        result = schedule(step)
    except TypeError as error:  # TensorFlow does not convert a Python float to int64
        try:
            result = schedule(tf.cast(step, tf.float64))
        except TypeError:
            raise error from None
    value = tf.constant("")
    with suppress(TypeError, ValueError):
        value = tf.convert_to_tensor(result)
    is_number = value.dtype.is_floating or value.dtype.is_integer
    if not is_number or value.shape.rank not in (0, None):
        raise ConfigError(f"{name}: must return a scalar number, got {result!r}")
    return tf.cast(tf.ensure_shape(value, ()), tf.float32)


def _int64(step: Any) -> tf.Tensor:
    # `tf.cast` would make an int32 tensor from a Python int first, which overflows at 2**31.
    return tf.constant(step, tf.int64) if isinstance(step, int) else tf.cast(step, tf.int64)


def _share(step: Any, steps: int) -> tf.Tensor:
    """Return the completed share of `steps`, at most 1, as a float64 scalar."""
    return tf.cast(tf.minimum(_int64(step), steps), tf.float64) / steps


def _passed(boundaries: Sequence[int], step: tf.Tensor) -> tf.Tensor:
    """Return the number of boundaries at or before `step`, an int32 scalar."""
    return tf.reduce_sum(tf.cast(tf.constant(boundaries, tf.int64, (len(boundaries),)) <= step, tf.int32))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
