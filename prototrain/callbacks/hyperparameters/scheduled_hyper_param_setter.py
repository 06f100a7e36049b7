"""Hyperparameters that follow a table of points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from prototrain.callbacks.hyperparameters.hyper_param import HyperParam
from prototrain.callbacks.hyperparameters.hyper_param_setter import HyperParamSetter
from prototrain.errors import CallbackError


class ScheduledHyperParamSetter(HyperParamSetter):
    """Sets a hyperparameter by a table of ``(when, value)``.

    The value holds from the point on: that many epochs, or steps, are completed. Before the first point the
    hyperparameter is left alone. By steps and ``interp="linear"`` it is set after every step, which makes each compiled
    call one step long; a learning rate is better set by ``LearningRate(schedules.linear(...))``, inside the call.

    Args:
        param: the hyperparameter, or what `HyperParam` takes first.
        schedule: the points, their epochs or steps ascending; 0 is the start of training.
        interp: "linear" for straight lines between the points, None for steps.
        step_based: the points are steps, not epochs.

    Raises:
        CallbackError: the schedule is empty or not ascending, or `interp` is unknown.
    """

    def __init__(
        self,
        param: HyperParam | Any,
        schedule: Sequence[tuple[int, float]],
        *,
        interp: Literal["linear"] | None = None,
        step_based: bool = False,
    ) -> None:
        super().__init__(param)
        self.points = [(int(when), float(value)) for when, value in schedule]
        if not self.points or any(a[0] >= b[0] for a, b in pairwise(self.points)) or self.points[0][0] < 0:
            raise CallbackError(
                f"{self.state_key}: the schedule needs (when, value) points in ascending order, got {schedule}"
            )
        if interp not in (None, "linear"):
            raise CallbackError(f'{self.state_key}: interp must be "linear" or None, got {interp!r}')
        self._linear = interp == "linear"
        self._step_based = step_based

    def value_at(self, when: int) -> float | None:
        """The value after `when` epochs or steps, or None before the first point."""
        index = bisect_right(self.points, when, key=lambda point: point[0]) - 1
        if index < 0:
            return None
        begin, value = self.points[index]
        if not self._linear or index + 1 == len(self.points):
            return value
        end, target = self.points[index + 1]
        return value + (target - value) * (when - begin) / (end - begin)

    def new_value(self) -> float | None:
        step = self.trainer.global_step
        return self.value_at(step if self._step_based else step // self.trainer.steps_per_epoch)

    def first_value(self) -> float | None:
        return self.value_at(0)

    def next_step(self, step: int) -> int | None:
        if not self._step_based:
            return None
        following = next((when for when, _ in self.points if when > step), None)
        between = following is not None and following != self.points[0][0]
        return step + 1 if self._linear and between else following

    def trigger_step(self) -> None:
        self.trigger()

    def trigger_epoch(self) -> None:
        if not self._step_based:
            self.trigger()
