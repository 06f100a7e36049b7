"""Exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.checkpoint.weights import AVERAGES
from prototrain.errors import CallbackError


class ExponentialMovingAverage(Callback):
    """Maintains moving averages of the trained weights and evaluates the model with them.

        ExponentialMovingAverage(0.999)

    After each step, ``average += (1 - decay) * (weight - average)``, within the compiled call. `Validation`,
    `InferenceRunner` and code inside `applied` use the averages. Training is not affected. Every checkpoint holds the
    averages as ``callbacks/ExponentialMovingAverage/<name>``; read them with `averaged_weights`.

    Args:
        decay: the decay of the averages, between 0 and 1.

    Raises:
        CallbackError: `decay` is out of range; at setup, if there are no trainable variables.
    """

    chief_only = False

    def __init__(self, decay: float) -> None:
        if not 0 < decay < 1:
            raise CallbackError(f"ExponentialMovingAverage: decay must be between 0 and 1, got {decay!r}")
        self.decay = decay

    def setup(self) -> None:
        state = self.trainer.state
        trained = self.trainer.trained_variables.items()
        self._weights = {name: weight for name, weight in trained if tf.as_dtype(weight.dtype).is_floating}
        if not self._weights:
            raise CallbackError(f"ExponentialMovingAverage: {type(self.trainer).__name__} has no trainable variables")
        # Tracked by name, since the averages of layers that are unfrozen between two runs begin at that time.
        self._begun = {name for name in self._weights if AVERAGES + name in state}
        for name, weight in self._weights.items():
            state.setdefault(AVERAGES + name, tf.Variable(tf.convert_to_tensor(weight), trainable=False))
        self._pairs = [(weight, state[AVERAGES + name]) for name, weight in self._weights.items()]
        self.trainer.evaluation_scopes.append(self.applied)

    def before_train(self) -> None:
        for name, (weight, average) in zip(self._weights, self._pairs, strict=True):
            if name not in self._begun:
                average.assign(weight)
        self._begun.update(self._weights)

    def after_run(self, outputs: dict[str, Any]) -> None:
        for weight, average in self._pairs:
            average.assign_sub((1 - self.decay) * (average - tf.convert_to_tensor(weight)))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context manager that replaces the weights by the averages."""
        kept = [tf.identity(tf.convert_to_tensor(weight)) for weight, _ in self._pairs]
        try:
            for weight, average in self._pairs:
                weight.assign(average)
            yield
        finally:
            for (weight, _), value in zip(self._pairs, kept, strict=True):
                weight.assign(value)

    def state_dict(self) -> dict[str, Any]:
        return {"names": list(self._weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begun.update(state["names"])
