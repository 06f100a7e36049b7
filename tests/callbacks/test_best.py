from __future__ import annotations

import math

import pytest

from prototrain.callbacks.monitor import Best


@pytest.mark.parametrize(
    ("mode", "min_delta", "values", "better"),
    [
        ("min", 0.0, [3.0, 2.0, 2.0, 2.5, 1.0], [True, True, False, False, True]),
        ("max", 0.0, [3.0, 2.0, 4.0, 4.0], [True, False, True, False]),
        ("min", 0.5, [3.0, 2.6, 2.4], [True, False, True]),
        ("max", 0.5, [1.0, 1.5, 1.6], [True, False, True]),
        ("min", 0.0, [math.nan, math.inf, 1.0, math.nan, -math.inf], [False, True, True, False, True]),
    ],
)
def test_which_values_are_better(mode: str, min_delta: float, values: list[float], better: list[bool]) -> None:
    best = Best(mode, min_delta=min_delta)  # type: ignore[arg-type]
    assert [best.update(value, step) for step, value in enumerate(values)] == better


def test_state_survives_json() -> None:
    best = Best("min")
    best.update(math.inf, 7)
    other = Best("min")
    other.load_state_dict(best.state_dict())
    assert (other.value, other.step) == (math.inf, 7)
