"""What variables held before several towers or workers began to change them, each at its own pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from prototrain.towers import components


class Snapshot:
    """Puts back what steps at the same time have spoilt for each other.

    A step that is not finite puts back the moving statistics that it has changed, but another one may have read them
    meanwhile, and writes what it makes of them. So they are kept while nobody is at work.

    Args:
        variables: returns those that a step may change before it proves not to be finite.
    """

    def __init__(self, variables: Callable[[], Sequence[Any]]) -> None:
        self._variables = variables
        self._kept: list[tuple[tf.Variable, tf.Tensor]] = []

    def take(self) -> None:
        """Keep the values of now."""
        self._kept = []
        for variable in (copy for one in self._variables() for copy in components(one)):
            if variable.dtype.is_floating:
                with tf.device(variable.device):
                    self._kept.append((variable, tf.identity(variable)))

    def put_back(self) -> None:
        """Give those variables that are not finite the values that they had."""
        for variable, value in self._kept:
            if not bool(tf.reduce_all(tf.math.is_finite(variable))):
                variable.assign(value)
