"""Learning rate schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError
from prototrain.tf_private import KerasVariable


class LearningRate(Callback):
    """Sets the optimizer's learning rate before each step, within the compiled call.

        LearningRate(schedules.cosine(0.1, 10_000))

    The callback has no state: the rate depends only on the step, also in a resumed run.

    Args:
        schedule: takes the number of completed steps and returns the learning rate. The step is an int64 scalar
            tensor, or float64 if the schedule cannot compute with int64, as in ``0.1 * 0.5 ** (step // 1000)``.

    Raises:
        CallbackError: at setup, if the trainer has no optimizer, the optimizer already has a schedule, or `schedule`
            does not consist of TensorFlow ops.
    """

    chief_only = False  # all workers must apply the same updates

    def __init__(self, schedule: Callable[[Any], Any]) -> None:
        self.schedule = schedule

    @property
    def optimizer(self) -> Any:
        """The optimizer whose learning rate is set."""
        return self.trainer.optimizer

    def setup(self) -> None:
        if self.optimizer is None:
            kind = type(self.trainer).__name__
            raise CallbackError(f"LearningRate needs a trainer with an optimizer; {kind} has none")
        if not isinstance(self.optimizer.learning_rate, KerasVariable):
            raise CallbackError("LearningRate: the optimizer was made with a schedule; make it with a number")

    def before_train(self) -> None:
        self._assign(self.trainer.global_step)

    def before_run(self) -> None:
        self._assign(self.trainer.counter.begun)

    def _rate(self, step: tf.Tensor) -> Any:
        try:
            return self.schedule(step)
        except tf.errors.OperatorNotAllowedInGraphError as error:
            raise CallbackError("LearningRate: the schedule is compiled; use tf.where instead of if") from error
        except TypeError as error:  # TensorFlow does not convert a Python float to int64
            if step.dtype == tf.float64:
                raise
            try:
                return self._rate(tf.cast(step, tf.float64))
            except TypeError:
                raise error from None

    def _assign(self, step: Any) -> None:
        # Use a tensor, since arithmetic with Python numbers may round differently from the compiled call. Convert from
        # a NumPy integer, since TensorFlow caches every Python number that it converts.
        number = np.int64(step) if isinstance(step, int) else step
        self.optimizer.learning_rate.assign(self._rate(tf.convert_to_tensor(number, tf.int64)))
