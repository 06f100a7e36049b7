"""Something that is done to variables after each update, such as clipping or rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prototrain.callbacks.base import Callback
from prototrain.callbacks.monitors.tensor_summaries import matching


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
        for variable in self._variables.values():
            value = self.function(variable)
            if value is not None:
                variable.assign(value)
