"""Callbacks that change a hyperparameter."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

from prototrain.callbacks.base import Callback, Priority, begins_anew, innermost
from prototrain.callbacks.best import Best, Mode
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
        value = self.new_value()
        self._triggered_at = self.trainer.global_step
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


_LINE = re.compile(r"\s*([^:=]+?)\s*[:=]\s*(\S+)\s*")


class HumanHyperParamSetter(HyperParamSetter):
    """Sets a hyperparameter to what stands in a file of the experiment directory, read whenever triggered.

    The file has lines like ``learning_rate: 0.001`` (or with ``=``); empty lines and those that begin with # are
    skipped, the last line of a name counts. A line that cannot be understood is reported once and ignored.

    Args:
        param: the hyperparameter, or what `HyperParam` takes first.
        file_name: the file in the experiment directory.
    """

    def __init__(self, param: HyperParam | Any, *, file_name: str = "hyper.txt") -> None:
        super().__init__(param)
        self._file_name = file_name
        self._reported: set[str] = set()

    def setup(self) -> None:
        super().setup()
        self._reported = set()
        self._path = self.trainer.require_experiment("HumanHyperParamSetter").directory / self._file_name

    def new_value(self) -> float | None:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        value = None
        for line in text.splitlines():
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _LINE.fullmatch(line)
            if match is not None and match[1] != self.param.name:
                continue
            if match is not None and _is_finite(match[2]):
                value = float(match[2])
            elif line not in self._reported:
                self._reported.add(line)
                self.trainer.log(
                    f"WARNING: {self._path}: ignored the line {line!r}; write it like {self.param.name}: 0.001"
                )
        return value

    def first_value(self) -> float | None:
        return self.new_value()


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class StatMonitorParamSetter(HyperParamSetter):
    """Changes a hyperparameter when a scalar has not improved enough in its last k measurements.

    The first of the last k + 1 measurements is compared with the ones after it. After a change the count begins anew.
    Trigger it where the scalar is measured: ``.every(steps=100)`` with ``Validation().every(steps=100)``.

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
