"""Scalars of training steps, smoothed over all steps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.checkpoint.state import OF_CALLBACKS
from prototrain.errors import CallbackError


class MovingAverageSummary(Callback):
    """Averages scalars over the steps inside the compiled call, and records them as ``trn/<name>_average`` when
    triggered.

    The averages are part of every checkpoint.

    Args:
        names: of the step's scalars.
        decay: how much of the average stays in each step.
        prefix: what the scalars' names start with.

    Raises:
        CallbackError: `decay` is not between 0 and 1, or no scalar is named; while training, if there is no such
            scalar.
    """

    chief_only = False

    def __init__(self, *names: str, decay: float = 0.95, prefix: str = "trn") -> None:
        if not names or not all(isinstance(name, str) for name in names):
            raise CallbackError("MovingAverageSummary: name the scalars, such as MovingAverageSummary('loss')")
        if not 0 < decay < 1:
            raise CallbackError(f"MovingAverageSummary: decay must be between 0 and 1, got {decay!r}")
        self.names = names
        self.decay = decay
        self.prefix = prefix
        self.state_key = f"MovingAverageSummary/{decay}"

    def setup(self) -> None:
        state, key = self.trainer.state, f"{OF_CALLBACKS}{self.state_key}"
        # For each scalar the weighted sum of its values, and behind them the sum of the weights.
        self._sums = state.setdefault(key, tf.Variable(tf.zeros([len(self.names) + 1], tf.float64), trainable=False))

    def after_run(self, outputs: dict[str, Any]) -> None:
        missing = [name for name in self.names if name not in outputs]
        if missing:
            known = ", ".join(outputs) or "none"
            raise CallbackError(f"MovingAverageSummary: the step has no scalar {', '.join(missing)}; it has: {known}")
        values = [tf.cast(outputs[name], tf.float64) for name in self.names]
        now = tf.stack([*values, tf.constant(1.0, tf.float64)])
        self._sums.assign(self.decay * self._sums + (1 - self.decay) * now)

    def trigger(self) -> None:
        *sums, weight = self._sums.numpy().tolist()
        if weight:
            for name, total in zip(self.names, sums, strict=True):
                self.trainer.monitors.put_scalar(f"{self.prefix}/{name}_average", total / weight)

    def state_dict(self) -> dict[str, Any]:
        return {"names": list(self.names)}
