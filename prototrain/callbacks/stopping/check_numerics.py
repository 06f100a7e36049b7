"""Checking that the weights are numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.errors import NonFiniteError
from prototrain.private_api.of_keras import KerasVariable
from prototrain.step.functions import compiled


class CheckNumerics(Callback):
    """Ends the run with an error when, at the time it is triggered, a variable holds a NaN or an infinity.

    It runs before anything is saved at that step, and what SaveOnExit then writes is set aside: the newest checkpoint
    keeps finite weights. `StopOnNaN` looks at losses and gradients instead, in every step.
    """

    def setup(self) -> None:
        entries = {name: entry for name, entry in self.trainer.state.items() if _is_float_variable(entry)}
        self._names, variables = list(entries), list(entries.values())

        def check() -> tf.Tensor:
            return tf.stack([tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(v))) for v in variables])

        self._check = compiled(check)

    def trigger(self) -> None:
        if not self._names:
            return
        finite = self._check().numpy()
        bad = [name for name, fine in zip(self._names, finite, strict=True) if not fine]
        if bad:
            self.trainer.reject_state()
            raise NonFiniteError(f"after step {self.trainer.global_step}, {', '.join(bad)} is not finite")


def _is_float_variable(entry: Any) -> bool:
    return isinstance(entry, (tf.Variable, KerasVariable)) and tf.as_dtype(entry.dtype).is_floating
