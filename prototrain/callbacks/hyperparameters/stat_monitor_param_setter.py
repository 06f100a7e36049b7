"""Hyperparameters that change when a scalar stops improving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prototrain.callbacks.base import Priority, begins_anew
from prototrain.callbacks.best import Best, Mode
from prototrain.callbacks.hyperparameters.hyper_param import HyperParam
from prototrain.callbacks.hyperparameters.hyper_param_setter import HyperParamSetter
from prototrain.errors import CallbackError


class StatMonitorParamSetter(HyperParamSetter):
    """Changes a hyperparameter when a scalar has not improved enough in its last k measurements.

    The first of the last k + 1 measurements is compared with the ones after it. After a change the count begins anew.
    Trigger it where the scalar is measured: ``.every(steps=100)`` beside ``Validation().every(steps=100)``.

    Args:
        param: the hyperparameter, or what `HyperParam` takes first.
        stat: the scalar's name, such as "vld/loss".
        function: from the value in force to the new one, such as ``lambda rate: rate / 2``.
        mode: "min" if the scalar should become smaller, "max" if larger.
        last_k: the number of measurements.
        min_delta: by how much at least one of them must be better than the one before them.

    Raises:
        CallbackError: `mode` or `last_k` is wrong; while training, if the scalar was not measured at the present
            step.
    """

    priority = Priority.DECIDE

    def __init__(
        self,
        param: HyperParam | Any,
        stat: str,
        function: Callable[[float], float],
        *,
        mode: Mode,
        last_k: int,
        min_delta: float = 0.0,
    ) -> None:
        super().__init__(param)
        if last_k < 1:
            raise CallbackError(f"{self.state_key}: last_k must be at least 1, got {last_k}")
        self.stat = stat
        self._function = function
        self._mode: Mode = mode
        self._last_k = last_k
        self._min_delta = Best(mode, min_delta=min_delta).min_delta
        self._recent: list[float] = []

    def setup(self) -> None:
        super().setup()
        if begins_anew(self):
            self._recent = []

    def check_run(self) -> None:
        self.trainer.monitors.require(self, self.stat)

    def new_value(self) -> float | None:
        value = self.trainer.monitors.latest(self.stat, at_step=self.trainer.global_step)
        self._recent = [*self._recent, value][-self._last_k - 1 :]
        if len(self._recent) <= self._last_k:
            return None
        best = Best(self._mode, min_delta=self._min_delta)
        best.update(self._recent[0], 0)
        if any(best.is_better(later) for later in self._recent[1:]):
            return None
        self._recent = []
        return self._function(self.param.get())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "recent": [repr(value) for value in self._recent]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._recent = [float(value) for value in state["recent"]]
