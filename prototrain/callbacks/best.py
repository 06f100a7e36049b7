"""Whether a measured value is better than the best one so far."""

from __future__ import annotations

import math
from typing import Any, Literal

from prototrain.errors import CallbackError

Mode = Literal["min", "max"]


class Best:
    """The best value of a scalar so far, and the step it was measured at.

    A value that is not a number is never better than another one.

    Args:
        mode: whether smaller ("min") or larger ("max") is better.
        min_delta: by how much, at least, a value must be better to count.

    Attributes:
        value: the best value, or None before the first.
        step: the step it belongs to, or None.

    Raises:
        CallbackError: `mode` is neither "min" nor "max", or `min_delta` is negative.
    """

    def __init__(self, mode: Mode, *, min_delta: float = 0.0) -> None:
        if mode not in ("min", "max"):
            raise CallbackError(f'mode must be "min" or "max", got {mode!r}')
        if not min_delta >= 0:
            raise CallbackError(f"min_delta must be at least 0, got {min_delta!r}")
        self.mode = mode
        self.min_delta = min_delta
        self.value: float | None = None
        self.step: int | None = None

    def is_better(self, value: float) -> bool:
        """Whether `value` beats the best one by more than `min_delta`."""
        if math.isnan(value):
            return False
        if self.value is None:
            return True
        gain = self.value - value if self.mode == "min" else value - self.value
        return gain > self.min_delta

    def update(self, value: float, step: int) -> bool:
        """Take a value into account.

        Returns:
            whether it is the best one now.
        """
        if not self.is_better(value):
            return False
        self.value, self.step = value, step
        return True

    def state_dict(self) -> dict[str, Any]:
        """Value and step, as JSON can hold them."""
        infinite = self.value is not None and math.isinf(self.value)
        return {"value": repr(self.value) if infinite else self.value, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.value = None if state["value"] is None else float(state["value"])
        self.step = None if state["step"] is None else int(state["step"])
