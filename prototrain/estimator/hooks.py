"""Hooks of `Estimator.train`: prototrain callbacks and objects with the methods of `SessionRunHook`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from prototrain.callbacks import Callback, Priority, ProcessTensors
from prototrain.errors import CallbackError, StopTraining

_OF_STEP = ("global_step", "learning_rate", "loss_l2", "loss_layers", "loss_total")
_METHODS = ("begin", "after_create_session", "before_run", "after_run", "end")


class SessionRunArgs(NamedTuple):
    """The values that a hook requests from a step.

    Attributes:
        fetches: a name, or a list or dict of names, of scalars of the step such as "loss", or "global_step".
        feed_dict: must be None or empty; a step cannot be fed.
    """

    fetches: Any
    feed_dict: Any = None


class SessionRunValues(NamedTuple):
    """The values of a step; `results` has the structure of `fetches`, with a number for each name."""

    results: Any


class SessionRunHook:
    """Base class of hooks with the interface of TensorFlow 1."""

    def begin(self) -> None:
        """Called once, before the first step."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each step; returns the values to pass to `after_run`."""

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each step."""

    def end(self, session: Any) -> None:
        """Called after the last step, unless training failed."""


class SessionRunContext:
    """The context of a hook call.

    Attributes:
        session: None, because there is no session.
        stop_requested: whether `request_stop` was called.
    """

    session = None
    stop_requested = False

    def request_stop(self) -> None:
        """Request the end of training after this step."""
        self.stop_requested = True


class HookCallback(Callback):
    """Adapts an object with the methods of `SessionRunHook` to a callback.

    A hook with `before_run` or `after_run` reduces each compiled call to one step.
    """

    priority = Priority.DECIDE  # a hook may request scalars that other callbacks record at the step

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self._each_step = _has_own(hook, "before_run") or _has_own(hook, "after_run")
        self._context = SessionRunContext()
        self._fetches: Any = None
        if _has_own(hook, "after_create_session"):
            raise CallbackError(f"{self.name}.after_create_session: there is no session; use begin()")

    @property
    def name(self) -> str:
        return type(self.hook).__name__

    def overrides(self, hook: str) -> bool:
        return super().overrides(hook) and (hook != "trigger_step" or self._each_step)

    def setup(self) -> None:
        self._outer = sys.exception()
        self._call("begin")

    def before_train(self) -> None:
        if self._each_step:
            self._request()

    def trigger_step(self) -> None:
        results = None if self._fetches is None else tf.nest.map_structure(self._scalar, self._fetches)
        self._call("after_run", self._context, SessionRunValues(results))
        if self._context.stop_requested:
            raise StopTraining(f"requested by {self.name}")
        if self.trainer.global_step < self.trainer.total_steps:
            self._request()

    def after_train(self) -> None:
        if sys.exception() is self._outer:  # no exception was raised since setup()
            self._call("end", None)

    def _request(self) -> None:
        arguments = self._call("before_run", self._context)
        if arguments is not None and getattr(arguments, "feed_dict", None):
            raise CallbackError(f"{self.name}.before_run: a step cannot be fed; let input_fn give the values")
        self._fetches = getattr(arguments, "fetches", None)

    def _call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.hook, method)(*arguments) if _has_own(self.hook, method) else None

    def _scalar(self, wanted: Any) -> float | int:
        if isinstance(wanted, str):
            name = wanted.removesuffix(":0")
            if name == "global_step":
                return self.trainer.global_step
            if name in self.trainer.outputs:
                return float(self.trainer.outputs[name])
        known = ", ".join([*self.trainer.outputs, "global_step"])
        raise CallbackError(
            f"{self.name}.before_run asks for {wanted!r}, which is not a scalar of a step; choose from {known}"
        )


def as_callbacks(hooks: Iterable[Any] | None) -> list[Callback]:
    """Return hooks as callbacks; a CallbackError for objects without methods of `SessionRunHook`."""
    found: list[Callback] = []
    for hook in hooks or ():
        if isinstance(hook, LoggingTensorHook):
            found.append(hook.every(steps=hook.steps, seconds=hook.seconds))
        elif isinstance(hook, Callback):
            found.append(hook)
        elif any(_has_own(hook, method) for method in _METHODS):
            found.append(HookCallback(hook))
        else:
            raise CallbackError(
                f"hooks: {type(hook).__name__} is neither a callback nor a SessionRunHook with its own methods "
                "(TensorFlow's hooks need a session; take a callback, or KerasCallback(...) for a callback of Keras)"
            )
    return found


def _has_own(hook: Any, method: str) -> bool:
    """Return whether a hook implements a method outside of TensorFlow's classes and this module."""
    defined = getattr(type(hook), method, None)
    return defined is not None and not str(defined.__module__).startswith(("tensorflow.", __name__))


class LoggingTensorHook(ProcessTensors):
    """Prints tensors of the training step at an interval.

    Args:
        tensors: a list of names, or a dict of names or tensors by label. A name refers to an operation
            (``tf.identity(x, name="x")``), a prediction, a metric or a scalar of the step. Only a hook that `model_fn`
            creates and passes to `EstimatorSpec(training_hooks=...)` may have tensors.
        every_n_iter: the number of steps between two lines.
        every_n_secs: the number of seconds between two lines.
        formatter: a function from the values by label to the line to print.

    Raises:
        CallbackError: neither or both intervals are given.
        ModelError: during training, if the step has no such tensor.
    """

    at_end = False

    def __init__(
        self,
        tensors: Sequence[str] | Mapping[str, Any],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        if (every_n_iter is None) == (every_n_secs is None):
            raise CallbackError("LoggingTensorHook: give every_n_iter or every_n_secs, one of the two")
        by_tag = dict(tensors) if isinstance(tensors, Mapping) else {name: name for name in tensors}
        self.given = {tag: tensor for tag, tensor in by_tag.items() if not isinstance(tensor, str)}
        self.tags, self.steps, self.seconds = list(by_tag), every_n_iter, every_n_secs
        self._formatter = formatter
        super().__init__([tag if tag in self.given else by_tag[tag].removesuffix(":0") for tag in by_tag])

    def watches(self) -> list[str]:
        return [name for name in self.names if name not in _OF_STEP]

    def trigger(self) -> None:
        trainer = self.trainer
        seen = {**trainer.outputs, **trainer.watched, "global_step": trainer.global_step}
        if missing := [name for name in self.names if name not in seen]:
            raise CallbackError(
                f"LoggingTensorHook: there is no {missing[0]!r} in the step; there are {', '.join(seen)}"
            )
        arrays = {tag: np.asarray(seen[name]) for tag, name in zip(self.tags, self.names, strict=True)}
        values = {tag: array[()] if array.ndim == 0 else array for tag, array in arrays.items()}
        with np.printoptions(suppress=True):
            line = ", ".join(f"{tag} = {value}" for tag, value in values.items())
            trainer.log(self._formatter(values) if self._formatter is not None else line)


def given_tensors(hooks: Iterable[Any]) -> dict[str, Any]:
    """Return the tensors that a `model_fn` gave to its `LoggingTensorHook`s, by label."""
    found = {tag: one for hook in hooks if isinstance(hook, LoggingTensorHook) for tag, one in hook.given.items()}
    return {tag: one.result() if isinstance(one, keras.metrics.Metric) else one for tag, one in found.items()}


def names_to_print(hooks: Iterable[Any]) -> set[str]:
    """Return the names of the tensors that `LoggingTensorHook`s print and that `model_fn` did not give them."""
    logging = [hook for hook in hooks if isinstance(hook, LoggingTensorHook)]
    return {name for hook in logging for name in hook.watches() if name not in hook.given}


def find_tensors(names: Iterable[str]) -> dict[str, Any]:
    """Return the first output of the last operation of each name in the current graph."""
    operations = [] if tf.executing_eagerly() else tf.compat.v1.get_default_graph().get_operations()
    found = {}
    for name in names:
        # A graph adds scopes before a name, and a number after a name that it already has.
        pattern = re.compile(rf"(.*/)?{re.escape(name)}(_\d+)?")
        fitting = [operation for operation in operations if operation.outputs and pattern.fullmatch(operation.name)]
        if fitting:
            found[name] = fitting[-1].outputs[0]
    return found
