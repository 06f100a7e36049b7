"""What all callbacks that change a hyperparameter have in common."""

from __future__ import annotations

import math
from typing import Any

from prototrain.callbacks.base import Callback, innermost
from prototrain.callbacks.hyperparameters.hyper_param import HyperParam
from prototrain.callbacks.hyperparameters.learning_rate import LearningRate
from prototrain.errors import CallbackError, NonFiniteError


class HyperParamSetter(Callback):
    """Sets a hyperparameter when triggered, by default after each epoch. A subclass says to what.

    Each change is recorded as ``hyper/<name>`` at the step it is made at, and printed. The value in force is saved with
    every checkpoint, so a resumed run has the one that the uninterrupted run had.

    Args:
        param: the hyperparameter, or what `HyperParam` takes first.

    Raises:
        CallbackError: at setup, if there is no such hyperparameter, or `LearningRate` sets it as well.
        NonFiniteError: with `StopOnNaN` in the list, if the value is to be NaN, or a learning rate infinite.
    """

    chief_only = False
    at_end = False

    def __init__(self, param: HyperParam | Any) -> None:
        self.param = param if isinstance(param, HyperParam) else HyperParam(param)
        self.state_key = f"{type(self).__name__}/{self.param.name}"

    def new_value(self) -> float | None:
        """The value to set now, or None to leave it."""
        raise NotImplementedError

    def first_value(self) -> float | None:
        """The value to set before the first step of training, or None to leave it."""
        return None

    def setup(self) -> None:
        self.param.connect(self.trainer)
        self._restored: float | None = None
        self._triggered_at = -1
        scheduled = any(isinstance(innermost(callback), LearningRate) for callback in self.trainer.callbacks)
        if scheduled and self.param.is_learning_rate_of(self.trainer):
            raise CallbackError(f"{self.name} and LearningRate both set the learning rate; leave one of them out")

    def before_train(self) -> None:
        if self._restored is not None:
            self._set(self._restored)
        elif self.trainer.global_step == 0:
            first = self.first_value()
            if first is not None:
                self._set(first)
            self.trainer.monitors.put_scalar(f"hyper/{self.param.name}", self.param.get())

    def trigger(self) -> None:
        if self.trainer.global_step == self._triggered_at:
            return  # a resumed run calls the callbacks of its step again if one of them had failed
        self._triggered_at = self.trainer.global_step
        value = self.new_value()
        old = self.param.get()
        if value is None or value == old:
            return
        self._set(value)
        # What is in force may differ from what was asked for: a float32 variable rounds.
        now = self.param.get()
        if now != old:
            if self.trainer.global_step:  # before the first step it has a value already
                self.trainer.monitors.put_scalar(f"hyper/{self.param.name}", now)
            self.trainer.log(
                f"{self.param.name} is {now:g} from step {self.trainer.global_step + 1} on (it was {old:g})"
            )

    def _set(self, value: float) -> None:
        trainer = self.trainer
        # Other hyperparameters may be infinite, such as a limit that does not limit.
        is_wrong = math.isnan(value) or (math.isinf(value) and self.param.is_learning_rate_of(trainer))
        if trainer.check_finite and is_wrong:
            raise NonFiniteError(f"{self.name}: {self.param.name} is to be {value} after step {trainer.global_step}")
        self.param.set(value)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.param.get(), "step": self._triggered_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored, self._triggered_at = float(state["value"]), int(state["step"])
