"""Ending a run whose numbers are no longer finite."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError, NonFiniteError
from prototrain.step.functions import compiled
from prototrain.tf_private import KerasVariable


class StopOnNaN(Callback):
    """Ends the run with an error at the very step whose loss, gradient or learning rate is NaN or infinite.

    In a tower trainer the test is part of the compiled step and the bad update is not applied, so the last whole step
    can be saved. In a plain-Python trainer every scalar that `run_step` returns is tested.

    An update by finite gradients can still overflow. So all variables, including those of the optimizer and of
    callbacks, are tested before each checkpoint and at the end of the run. A checkpoint that is not finite is neither
    written nor resumed from. The run ends with an error that names the variables, and a resume uses the last good
    checkpoint.

    A variable that was not finite before the first step, such as a mask of -inf, is named once and not tested; if it
    was infinite, a NaN in it still counts.

    Args:
        ignore: a regular expression; variables whose names it matches are not tested.

    Raises:
        CallbackError: `ignore` is not a regular expression.
    """

    chief_only = False  # all workers must do the same updates

    def __init__(self, *, ignore: str | None = None) -> None:
        try:
            re.compile(ignore or "")
        except re.error as error:
            raise CallbackError(f"StopOnNaN: ignore={ignore!r} is not a regular expression: {error}") from error
        self.ignore = ignore

    def setup(self) -> None:
        self.trainer.check_finite = True
        if self.ignore is not None:
            self.trainer.run.finite.ignored.append(self.ignore)

    def after_train(self) -> None:
        """Test the last state before it is saved."""
        trainer = self.trainer
        if trainer.global_step == trainer.run.began_at or not trainer.run.state_is_sound:
            return
        found = trainer.run.find_not_finite()
        if found is None:
            return
        trainer.run.reject_state()
        said = f"after step {trainer.global_step}, {found}; {trainer.run.resume_point()}"
        if trainer.callbacks.failure is None:
            raise NonFiniteError(said)
        trainer.log(f"WARNING: {said}")


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
            self.trainer.run.reject_state()
            raise NonFiniteError(f"after step {self.trainer.global_step}, {', '.join(bad)} is not finite")


def _is_float_variable(entry: Any) -> bool:
    return isinstance(entry, (tf.Variable, KerasVariable)) and tf.as_dtype(entry.dtype).is_floating
