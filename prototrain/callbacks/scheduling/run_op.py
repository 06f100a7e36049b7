"""Running a function of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError
from prototrain.private_api.of_keras import KerasVariable


class RunOp(Callback):
    """Runs a function before training, whenever it is triggered, or along with every step.

        RunOp(lambda: target.assign(weights))

    Args:
        function: called without arguments. What is to be done must be in it: an assignment that is written in place
            is made there and then, and never again.
        run_before: call it before the first step of training (not of a resumed run).
        run_as_trigger: call it in `trigger`, by default after each epoch.
        run_step: add it to every iteration; it is then traced into the compiled step and may use TensorFlow ops only.
        verbose: print a line whenever it is called from Python.

    Raises:
        CallbackError: it is not a function, or one that needs arguments.
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
        self.function = _checked(function)
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


def _checked(function: Any) -> Callable[[], Any]:
    if not callable(function) or isinstance(function, (tf.Variable, KerasVariable)):
        what = "the value of an op that has run already" if _is_value(function) else f"a {type(function).__name__}"
        raise CallbackError(f"RunOp takes a function, and got {what}; write RunOp(lambda: variable.assign(value))")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise CallbackError(f"RunOp calls its function without arguments, and this one needs some: {error}") from error
    except ValueError:  # of a builtin nobody knows
        pass
    return function  # type: ignore[no-any-return]


def _is_value(given: Any) -> bool:
    # An assignment gives None, or the variable itself.
    return given is None or tf.is_tensor(given) or isinstance(given, (tf.Variable, KerasVariable))
