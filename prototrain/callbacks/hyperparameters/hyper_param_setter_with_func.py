"""Hyperparameters as a function of the epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prototrain.callbacks.hyperparameters.hyper_param import HyperParam
from prototrain.callbacks.hyperparameters.hyper_param_setter import HyperParamSetter


class HyperParamSetterWithFunc(HyperParamSetter):
    """Sets a hyperparameter to what a function returns, after each epoch or as `every` says.

    Args:
        param: the hyperparameter, or what `HyperParam` takes first.
        function: takes the number of completed epochs (0 before the first step) and the value in force; returns the
            new value, or None to leave it.
    """

    def __init__(self, param: HyperParam | Any, function: Callable[[int, float], float | None]) -> None:
        super().__init__(param)
        self._function = function

    def new_value(self) -> float | None:
        return self._function(self.trainer.global_step // self.trainer.steps_per_epoch, self.param.get())

    def first_value(self) -> float | None:
        return self.new_value()
