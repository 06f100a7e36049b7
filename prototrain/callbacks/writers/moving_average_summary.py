"""Scalars of training steps, smoothed over all steps."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.callbacks.monitor import as_json
from prototrain.checkpoint.state import OF_CALLBACKS
from prototrain.errors import CallbackError
from prototrain.step.variables import scratch_variable
from prototrain.towers import components


class MovingAverageSummary(Callback):
    """Averages scalars over the steps inside the compiled call, and records them as ``trn/<name>_average`` when
    triggered.

    The averages are part of every checkpoint.

    Args:
        names: of the step's scalars.
        pattern: instead of names, a regular expression for whole names; ``.*`` for all scalars.
        decay: how much of the average stays in each step.
        prefix: what the scalars' names start with.

    Raises:
        CallbackError: `decay` is not between 0 and 1, or neither names nor a pattern are given; while training, if
            there is no such scalar.
    """

    chief_only = False

    def __init__(self, *names: str, pattern: str | None = None, decay: float = 0.95, prefix: str = "trn") -> None:
        if bool(names) == (pattern is not None) or not all(isinstance(name, str) for name in names):
            raise CallbackError(
                "MovingAverageSummary: name the scalars, such as MovingAverageSummary('loss'), or give a pattern, such "
                "as MovingAverageSummary(pattern='.*')"
            )
        if not 0 < decay < 1:
            raise CallbackError(f"MovingAverageSummary: decay must be between 0 and 1, got {decay!r}")
        try:
            self._pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise CallbackError(f"MovingAverageSummary: {pattern!r} is not a regular expression: {error}") from error
        self.names = names
        self._sums: tf.Variable | None = None
        self._restored: dict[str, list[float]] = {}
        self._of: Any = None  # the trainer that the averages are of
        self.decay = decay
        self.prefix = prefix
        self.state_key = f"MovingAverageSummary/{decay}" + ("" if pattern is None else f"/{pattern}")

    def setup(self) -> None:
        names = [f"{name}_average" for name in self.names] if self._pattern is None else None
        self.trainer.monitors.announce(self, self.prefix, names)
        if self._pattern is None:
            state, key = self.trainer.state, f"{OF_CALLBACKS}{self.state_key}"
            # For each scalar the weighted sum of its values, and behind them the sum of the weights.
            zeros = tf.zeros([len(self.names) + 1], tf.float64)
            self._sums = state.setdefault(key, tf.Variable(zeros, trainable=False))
        else:
            self._restored = self._values() if self._of is self.trainer else {}
            self._of, self._sums, self.names = self.trainer, None, ()

    def after_run(self, outputs: dict[str, Any]) -> None:
        if self._pattern is not None:
            self._find(outputs)
        missing = [name for name in self.names if name not in outputs]
        if missing or self._sums is None:
            known = ", ".join(outputs) or "none"
            wanted = ", ".join(missing) or repr(self._pattern and self._pattern.pattern)
            raise CallbackError(f"MovingAverageSummary: the step has no scalar {wanted}; it has: {known}")
        values = [tf.cast(outputs[name], tf.float64) for name in self.names]
        one = tf.constant(1.0, tf.float64)
        now = tf.stack([*values, one] if self._pattern is None else [values, [one] * len(values)])
        self._sums.assign(self.decay * self._sums + (1 - self.decay) * now)

    def _find(self, outputs: dict[str, Any]) -> None:
        """Find what the pattern means among a step's scalars, which are known only where it is traced."""
        found = tuple(name for name in outputs if self._pattern is not None and self._pattern.fullmatch(name))
        if self.names or not found:
            return
        pairs = [self._restored.get(name, [0.0, 0.0]) for name in found]
        # That is too late for `trainer.state`, so that `state_dict` has the values: sums, and weights below them.
        with tf.init_scope(), self.trainer._setup_scope():
            self._sums = scratch_variable(np.transpose(pairs), name="averages", dtype=tf.float64)
        for copy in components(self._sums):
            copy.is_scratch = True
        self.trainer.callbacks.variables.append(self._sums)
        self.names = found

    def trigger(self) -> None:
        for name, (total, weight) in self._values().items():
            if weight:
                self.trainer.monitors.put_scalar(f"{self.prefix}/{name}_average", total / weight)

    def _values(self) -> dict[str, list[float]]:
        if self._sums is None:
            return self._restored
        values = tf.convert_to_tensor(self._sums).numpy()
        pairs = [[total, values[-1]] for total in values[:-1]] if self._pattern is None else values.T
        return {name: [float(x) for x in pair] for name, pair in zip(self.names, pairs, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        if self._pattern is None:
            return {"names": list(self.names)}
        values = self._values().items()
        return {"averages": {name: list(map(as_json, pair)) for name, pair in values}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._pattern is not None:
            self._restored = {name: [float(x) for x in pair] for name, pair in state["averages"].items()}
