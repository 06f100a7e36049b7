"""Callbacks that change hyperparameters during training: the learning rate and other values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise, takewhile
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback, Priority, innermost, require_same_steps
from prototrain.callbacks.monitor import Best, Mode
from prototrain.errors import CallbackError
from prototrain.schedules import value_at
from prototrain.system.tracebacks import cause
from prototrain.tf_private import KerasVariable

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

T = TypeVar("T", bound=Callback)


class HyperParam:
    """A scalar hyperparameter: a variable or an attribute of a Python object.

        HyperParam("learning_rate")             # the optimizer's
        HyperParam(rate, name="dropout_rate")   # a tf.Variable
        HyperParam(sampler, "temperature")      # an attribute

    A compiled step reads Python attributes only when it is traced. Use a variable for a value that the model reads.

    Args:
        target: "learning_rate", the name of a variable in `trainer.state`, a variable, or an object with `attribute`.
        attribute: the name of the object's attribute.
        name: the name of the value in metrics.jsonl, as ``hyper/<name>``, and in hyper.txt.
    """

    def __init__(self, target: Any, attribute: str | None = None, *, name: str | None = None) -> None:
        if attribute is None and not isinstance(target, str) and not hasattr(target, "name"):
            raise CallbackError(f"HyperParam takes a name, a variable, or an object and an attribute, not {target!r}")
        self.name: str = name or attribute or (target if isinstance(target, str) else target.name.split(":")[0])
        self._target = target
        self._trainer: Any = None
        self._attribute = attribute

    def connect(self, trainer: Trainer) -> None:
        """Attach to a trainer; raise an error if the variable or attribute does not exist, or cannot be set."""
        self._trainer = trainer
        if self._attribute is None and not hasattr(self.target, "assign"):
            what = "the optimizer has its own schedule" if self._target == "learning_rate" else "it is not a variable"
            raise CallbackError(f"{self.name} cannot be set: {what}")
        if self._attribute is None and tf.TensorShape(self.target.shape).rank:
            raise CallbackError(f"{self.name} has the shape {list(self.target.shape)}; it must be a scalar")
        self.get()

    @property
    def target(self) -> Any:
        """The variable, or the object that has the attribute."""
        name = self._target
        if not isinstance(name, str):
            return name
        if name == "learning_rate" and self._trainer.optimizer is not None:
            return self._trainer.optimizer.learning_rate
        state = self._trainer.state.items()
        known = {key: entry for key, entry in state if isinstance(entry, (tf.Variable, KerasVariable))}
        if name not in known:
            raise CallbackError(f"HyperParam: there is no variable {name!r}, only {', '.join(known) or 'none'}")
        return known[name]

    @property
    def is_whole(self) -> bool:
        """Whether this is a variable of integers."""
        return self._attribute is None and tf.as_dtype(self.target.dtype).is_integer

    def is_rate_of(self, optimizer: Any) -> bool:
        """Return whether this is the learning rate of an optimizer."""
        return self._attribute is None and self.target is getattr(optimizer, "learning_rate", None)

    def is_same(self, other: HyperParam) -> bool:
        """Return whether this is the same variable or attribute as another hyperparameter."""
        return self.target is other.target and self._attribute == other._attribute

    def check(self, value: float) -> None:
        """Raise a CallbackError if `value` cannot be set."""
        if self._attribute is not None:
            return
        if self.is_whole and not float(value).is_integer():
            raise CallbackError(f"{self.name} takes whole numbers only, and cannot become {value}")
        if value < 0 and self._trainer is not None and self.is_rate_of(self._trainer.optimizer):
            raise CallbackError(f"{self.name} cannot become {value}, since a learning rate is not negative")

    def get(self) -> float:
        """Return the current value."""
        if self._attribute is not None:
            return float(getattr(self._target, self._attribute))
        return float(tf.convert_to_tensor(self.target))

    def set(self, value: float) -> None:
        """Set the value."""
        self.check(value)
        if self._attribute is not None:
            is_whole = isinstance(getattr(self._target, self._attribute), int) and float(value).is_integer()
            setattr(self._target, self._attribute, int(value) if is_whole else value)
        else:
            # An array, since TensorFlow caches every Python number that it converts.
            self.target.assign(np.asarray(value, tf.as_dtype(self.target.dtype).as_numpy_dtype))


def _earlier(callback: Callback, kind: type[T]) -> list[T]:
    """Return the callbacks of a class that come before a callback, and are set up."""
    before = takewhile(lambda one: one is not callback, map(innermost, callback.trainer.callbacks))
    return [one for one in before if isinstance(one, kind)]


class HyperParamSetter(Callback):
    """Base class of callbacks that set a hyperparameter. Subclasses define `new_value`.

    The value is set when the callback is triggered, by default after each epoch. Each change is printed and recorded as
    ``hyper/<name>``. Checkpoints hold the current value, and a resumed run restores it.

    Args:
        param: a `HyperParam`, or its first argument.

    Attributes:
        at_start: whether the value is also set before the first step of training.

    Raises:
        CallbackError: at setup, if there is no such hyperparameter, or another callback also sets it.
    """

    chief_only = False
    at_end = False
    at_start: bool = False

    def __init__(self, param: Any) -> None:
        self.param = param if isinstance(param, HyperParam) else HyperParam(param)
        self.state_key = f"{type(self).__name__}/{self.param.name}"

    def new_value(self) -> float | None:
        """Return the value to set now, or None to keep the current value."""
        raise NotImplementedError

    def setup(self) -> None:
        require_same_steps(self)
        self.param.connect(self.trainer)
        self._restored: float | None = None
        if any(self.param.is_rate_of(one.optimizer) for one in _earlier(self, LearningRate)):
            raise CallbackError(f"{self.name} and LearningRate both set the learning rate; leave one of them out")
        for other in _earlier(self, HyperParamSetter):
            both = f"{other.name} and {self.name} both"
            if other.param.is_same(self.param):
                raise CallbackError(f"{both} set {self.param.name}; leave one of them out")
            if other.param.name == self.param.name:
                raise CallbackError(f"{both} record hyper/{self.param.name}; give one HyperParam(..., name=)")

    def before_train(self) -> None:
        if self._restored is not None:
            self.param.set(self._restored)
        elif self.trainer.global_step == 0:
            first = self.new_value() if self.at_start else None
            if first is not None:
                self.param.set(first)
            self.trainer.monitors.put_scalar(f"hyper/{self.param.name}", self.param.get())

    def trigger(self) -> None:
        step, value, old = self.trainer.global_step, self.new_value(), self.param.get()
        if value is None or value == old:
            return
        self.param.set(value)
        now = self.param.get()  # may differ from `value`: a float32 variable rounds
        if now != old:
            if step:  # before_train recorded the value of step 0
                self.trainer.monitors.put_scalar(f"hyper/{self.param.name}", now)
            self.trainer.log(f"{self.param.name} is {now:g} from step {step + 1} on (it was {old:g})")

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.param.get()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored = float(state["value"])


class HyperParamSetterWithFunc(HyperParamSetter):
    """Sets a hyperparameter to the result of a function, by default after each epoch.

        HyperParamSetterWithFunc("learning_rate", lambda epoch, rate: rate * 0.9)

    Args:
        param: a `HyperParam`, or its first argument.
        function: takes the number of completed epochs (0 before the first step) and the current value; returns the
            new value, or None to keep the current value.
    """

    at_start = True

    def __init__(self, param: Any, function: Callable[[int, float], float | None]) -> None:
        super().__init__(param)
        self._function = function

    def new_value(self) -> float | None:
        return self._function(self.trainer.global_step // self.trainer.steps_per_epoch, self.param.get())


class ScheduledHyperParamSetter(HyperParamSetter):
    """Sets a hyperparameter from a table of ``(when, value)`` points.

        ScheduledHyperParamSetter("learning_rate", [(0, 0.1), (30, 0.01)])

    Each value takes effect when that many epochs or steps are completed. A changed schedule takes effect when the run
    is resumed. Step-based linear interpolation sets the value after every step, so each compiled call runs only one
    step. For a learning rate, use ``LearningRate(schedules.linear(...))``, which sets it within the call.

    Args:
        param: a `HyperParam`, or its first argument.
        schedule: the points, by ascending epoch or step; 0 is the start of training.
        interp: "linear" for linear interpolation between the points, None for a step function.
        step_based: whether the points are steps instead of epochs.

    Raises:
        CallbackError: the schedule is empty or not ascending, an epoch or step is not a whole number, or `interp` is
            unknown.
    """

    at_start = True

    def __init__(
        self,
        param: Any,
        schedule: Iterable[tuple[int, float]],
        *,
        interp: Literal["linear"] | None = None,
        step_based: bool = False,
    ) -> None:
        super().__init__(param)
        schedule = list(schedule)
        whole = all(isinstance(when, Integral) for when, _ in schedule)
        if not schedule or not whole or any(a[0] >= b[0] for a, b in pairwise(schedule)):
            raise CallbackError(f"{self.state_key}: needs whole numbers in ascending order, got {schedule}")
        self.points = [(int(when), float(value)) for when, value in schedule]
        if interp not in (None, "linear"):
            raise CallbackError(f'{self.state_key}: interp must be "linear" or None, got {interp!r}')
        self._is_linear, self._step_based = interp == "linear", step_based

    def setup(self) -> None:
        super().setup()
        for _, value in self.points:
            self.param.check(value)
        if self._is_linear and self.param.is_whole:
            raise CallbackError(f"{self.param.name} takes whole numbers only: leave out interp")

    def new_value(self) -> float | None:
        step = self.trainer.global_step
        now = step if self._step_based else step // self.trainer.steps_per_epoch
        if self._is_linear and now >= self.points[0][0]:
            points, values = np.transpose(self.points)
            return float(np.interp(now, points, values))
        return next((value for when, value in reversed(self.points) if when <= now), None)

    def before_train(self) -> None:
        super().before_train()
        if self._restored is None and self.trainer.global_step:  # the schedule is new since the checkpoint
            self.trigger()

    def next_step(self, step: int) -> int | None:
        if not self._step_based:
            return None
        is_between = self._is_linear and self.points[0][0] <= step < self.points[-1][0]
        return step + 1 if is_between else next((when for when, _ in self.points if when > step), None)

    def trigger_step(self) -> None:
        self.trigger()

    def trigger_epoch(self) -> None:
        if not self._step_based:
            self.trigger()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedule": [*map(list, self.points), self._is_linear, self._step_based]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["schedule"] == self.state_dict()["schedule"]:
            super().load_state_dict(state)


class HumanHyperParamSetter(HyperParamSetter):
    """Sets a hyperparameter to the value in the file ``hyper.txt`` of the experiment directory.

        HumanHyperParamSetter("learning_rate").every(seconds=5)

    The file has lines like ``learning_rate: 0.001`` (or with ``=``), and comments that begin with #. The last line for
    the name takes precedence. An invalid line is reported once and ignored.

    Args:
        param: a `HyperParam`, or its first argument.
    """

    at_start = True

    def setup(self) -> None:
        super().setup()
        self._path = self.trainer.require_experiment("HumanHyperParamSetter").directory / "hyper.txt"

    def new_value(self) -> float | None:
        return self.trainer._of_chief(self._read)

    def _read(self) -> float | None:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        value = None
        setters = self.trainer.callbacks.of_class(HumanHyperParamSetter)
        others = {one.param.name for one in setters if one is not self}
        for line in text.splitlines():
            name, _, number = line.partition("#")[0].replace("=", ":", 1).partition(":")
            if not name.strip() or name.strip() in others:
                continue
            try:
                found = float(number) if name.strip() == self.param.name else math.nan
                self.param.check(found)
            except (ValueError, CallbackError):
                found = math.nan
            if math.isfinite(found):
                value = found
            else:
                text = f"ignored the line {line!r}; write it like {self.param.name}: 0.001"
                self.trainer.run.log_once(f"WARNING: {self._path}: {text}")
        return value


class StatMonitorParamSetter(HyperParamSetter):
    """Changes a hyperparameter when a scalar has stopped improving.

        StatMonitorParamSetter("learning_rate", "vld/loss", lambda rate: rate / 2, mode="min", last_k=3)

    The callback compares the last `last_k` measurements with the one before them. After a change it waits for `last_k`
    new measurements. Trigger the callback at the steps of the measurement.

    Args:
        param: a `HyperParam`, or its first argument.
        stat: the scalar's name, such as "vld/loss".
        function: takes the current value and returns the new value.
        mode: "min" if smaller is better, "max" if larger is better.
        last_k: the number of measurements to compare.
        min_delta: the minimum change that counts as an improvement.

    Raises:
        CallbackError: `mode`, `last_k` or `min_delta` is invalid; while training, if the scalar was not measured at the
            current step.
    """

    priority = Priority.DECIDE

    def __init__(
        self,
        param: Any,
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
        self._best = Best(mode, min_delta=min_delta)  # only compares
        self._last_k = last_k
        self._recent: list[float] = []

    def new_value(self) -> float | None:
        step = self.trainer.global_step
        value = self.trainer._of_chief(lambda: self.trainer.monitors.latest(self.stat, at_step=step))
        self._recent = [*self._recent, value][-self._last_k - 1 :]
        first, *later = self._recent
        if len(later) < self._last_k or any(self._best.improves(value, first) for value in later):
            return None
        self._recent = self._recent[-1:]
        return self._function(self.param.get())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "recent": self._recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._recent = [float(value) for value in state["recent"]]


class LearningRate(Callback):
    """Sets the optimizer's learning rate before each step, within the compiled call.

        LearningRate(schedules.cosine(0.1, 10_000))

    The callback has no state: the rate depends only on the step, also in a resumed run. A negative rate becomes NaN,
    which `StopOnNaN` stops, since it would undo what was learned.

    Args:
        schedule: takes the number of completed steps and returns the learning rate. The step is an int64 scalar
            tensor, or float64 if the schedule cannot compute with int64, as in ``0.1 * 0.5 ** (step // 1000)``.

    Raises:
        CallbackError: the schedule is not callable or does not consist of TensorFlow ops; at setup, if the trainer has
            no optimizer, the optimizer already has a schedule, or another `LearningRate` sets its rate.
        ConfigError: the schedule does not return a scalar number.
    """

    chief_only = False  # all workers must apply the same updates

    def __init__(self, schedule: Callable[[Any], Any]) -> None:
        if not callable(schedule):
            raise CallbackError(f"LearningRate takes a function of the step, not {schedule!r}")
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
        if setter := next((s for s in _earlier(self, HyperParamSetter) if s.param.is_rate_of(self.optimizer)), None):
            raise CallbackError(f"{setter.name} and LearningRate both set the learning rate; leave one of them out")
        if any(one.optimizer is self.optimizer for one in _earlier(self, LearningRate)):
            text = "two LearningRate callbacks set the same learning rate; leave one of them out"
            raise CallbackError(f"{text} (default_callbacks() has one if the config has a schedule)")

    def before_train(self) -> None:
        self._assign(self.trainer.global_step)

    def before_run(self) -> None:
        self._assign(self.trainer.counter.begun)

    def _assign(self, step: Any) -> None:
        # Use a tensor, since arithmetic with Python numbers may round differently from the compiled call. Convert from
        # a NumPy integer, since TensorFlow caches every Python number that it converts.
        number = np.int64(step) if isinstance(step, int) else step
        try:
            rate = value_at(self.schedule, tf.convert_to_tensor(number, tf.int64), "LearningRate: the schedule")
        except (TypeError, NotImplementedError) as error:
            text = f"LearningRate: the schedule failed: {cause(error)}"
            raise CallbackError(f"{text}; it is compiled: use TensorFlow's functions, and tf.where, not if") from error
        self.optimizer.learning_rate.assign(tf.where(rate < 0.0, math.nan, rate))
