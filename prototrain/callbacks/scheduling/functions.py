"""Callbacks made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.callbacks.writers.tensor_summaries import matching
from prototrain.errors import CallbackError
from prototrain.tf_private import KerasVariable

Hook = Callable[["CallbackFactory"], Any]


class CallbackFactory(Callback):
    """Makes a callback of functions, each of which gets the callback, and by it ``.trainer``.

        CallbackFactory(trigger=lambda self: print(self.trainer.global_step)).every(steps=100)

    Args:
        setup: see `Callback.setup`.
        before_train: see `Callback.before_train`.
        trigger: see `Callback.trigger`.
        after_train: see `Callback.after_train`.
        priority: when it runs among those of the same hook, see `Priority`.
    """

    def __init__(
        self,
        *,
        setup: Hook | None = None,
        before_train: Hook | None = None,
        trigger: Hook | None = None,
        after_train: Hook | None = None,
        priority: int = Callback.priority,
    ) -> None:
        self._hooks = {"setup": setup, "before_train": before_train, "trigger": trigger, "after_train": after_train}
        self.priority = priority

    def overrides(self, hook: str) -> bool:
        if hook == "trigger_epoch":
            hook = "trigger"  # what it does after an epoch is its trigger
        return self._hooks[hook] is not None if hook in self._hooks else super().overrides(hook)

    def setup(self) -> None:
        self._call("setup")

    def before_train(self) -> None:
        self._call("before_train")

    def trigger(self) -> None:
        self._call("trigger")

    def after_train(self) -> None:
        self._call("after_train")

    def _call(self, hook: str) -> None:
        function = self._hooks[hook]
        if function is not None:
            function(self)


class RunOp(Callback):
    """Runs a function before training, whenever it is triggered, or along with every step.

        RunOp(lambda: target.assign(weights))

    Args:
        function: called without arguments, such as ``lambda: target.assign(weights)``.
        run_before: call it before the first step of training (not of a resumed run).
        run_as_trigger: call it in `trigger`, by default after each epoch.
        run_step: add it to every iteration; it is then traced into the compiled step and may use TensorFlow ops only.
        verbose: print a line whenever it is called from Python.

    Raises:
        CallbackError: it is not a function.
    """

    chief_only = False

    def __init__(
        self,
        function: Callable[[], Any],
        *,
        run_before: bool = True,
        run_as_trigger: bool = True,
        run_step: bool = False,
        verbose: bool = False,
    ) -> None:
        if not callable(function) or isinstance(function, (tf.Variable, KerasVariable)):
            raise CallbackError(
                f"RunOp takes a function, not a {type(function).__name__}; write RunOp(lambda: variable.assign(value))"
            )
        self.function = function
        self._verbose = verbose
        self._run_before = run_before
        self._run_as_trigger = run_as_trigger
        self._run_step = run_step

    def overrides(self, hook: str) -> bool:
        if hook == "after_run":
            return self._run_step
        if hook in ("trigger", "trigger_epoch"):
            return self._run_as_trigger
        return super().overrides(hook)

    def before_train(self) -> None:
        if self._run_before and self.trainer.global_step == 0:
            self._run()

    def after_run(self, outputs: dict[str, Any]) -> None:
        if self._run_step:
            self.function()

    def trigger(self) -> None:
        if self._run_as_trigger:
            self._run()

    def _run(self) -> None:
        self.function()
        if self._verbose:
            named = getattr(self.function, "__name__", type(self.function).__name__)
            self.trainer.log(f"RunOp has called {named} after step {self.trainer.global_step}")


class AssignVariables(Callback):
    """Gives trained variables a new value after each step, in the compiled call.

        AssignVariables(lambda variable: tf.clip_by_value(variable, -0.01, 0.01), "critic/.*")

    Args:
        function: from a variable to its new value, or to None to leave it; traced, so that it may use TensorFlow
            operations only.
        regex: matches whole names of trained variables.

    Raises:
        CallbackError: at setup, if no trained variable has such a name.
    """

    chief_only = False

    def __init__(self, function: Callable[[Any], Any], regex: str = ".*") -> None:
        self.function = function
        self.regex = regex

    def setup(self) -> None:
        self._variables = matching(self.name, self.trainer.trained_variables, self.regex)

    def after_run(self, outputs: dict[str, Any]) -> None:
        trained = getattr(self.trainer, "trainable", self._variables)  # without those that are frozen for now
        for variable in [variable for name, variable in self._variables.items() if name in trained]:
            value = self.function(variable)
            if value is not None:
                variable.assign(value)
