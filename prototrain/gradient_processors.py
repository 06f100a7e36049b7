"""Gradient processors, which change gradients before the optimizer applies them.

A gradient processor is a callable that takes a list of (gradient, variable) pairs and returns such a list. It runs
inside the compiled step, so it must use TensorFlow ops. A gradient is a tensor, a `tf.IndexedSlices` (for an
embedding), or None if the loss does not depend on the variable. The processors in this module keep None. A variable
whose gradient is None after all processors is not updated.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from prototrain.errors import ConfigError
from prototrain.tf_private import KerasVariable, held_by
from prototrain.towers import tower_index

Pair = tuple[Any, Any]
"""(gradient: tf.Tensor, tf.IndexedSlices or None; variable: tf.Variable or keras.Variable)."""

NAME = "name_in_model"
"""An attribute of a model's variable: its name in `trainer.variables`, which TensorFlow's may differ from."""

GradientProcessor = Callable[[Sequence[Pair]], list[Pair]]


def drop_missing(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs whose gradient is not None."""
    return [(gradient, variable) for gradient, variable in pairs if gradient is not None]


class ClipByValue:
    """Clip each element of each gradient to [`minval`, `maxval`].

    In a sparse gradient, repeated rows are summed first, and only the existing rows are clipped.

    Raises:
        ConfigError: `minval` is not below `maxval`.
    """

    def __init__(self, minval: float, maxval: float) -> None:
        if not minval < maxval:
            raise ConfigError(f"ClipByValue: minval must be below maxval, got {minval} and {maxval}")
        self.minval, self.maxval = minval, maxval

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with clipped gradients."""
        return [(on_values(self._clipped, summed(gradient)), variable) for gradient, variable in pairs]

    def _clipped(self, values: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(values, self.minval, self.maxval)


class ClipByGlobalNorm:
    """Scale all gradients together so that their common L2 norm is at most `norm` (arXiv:1211.5063).

    If the norm is not finite, all gradients become NaN, so that a check detects it.

    Raises:
        ConfigError: `norm` is not above 0.
    """

    def __init__(self, norm: float) -> None:
        if not norm > 0:
            raise ConfigError(f"ClipByGlobalNorm: norm must be above 0, got {norm}")
        self.norm = norm

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with scaled gradients."""
        if not drop_missing(pairs):
            return list(pairs)
        gradients = [summed(gradient) for gradient, _ in pairs]
        in_float32 = [None if gradient is None else tf.cast(gradient, tf.float32) for gradient in gradients]
        clipped, _ = tf.clip_by_global_norm(in_float32, self.norm)
        back = [None if one is None else tf.cast(one, old.dtype) for one, old in zip(clipped, gradients, strict=True)]
        return [(gradient, variable) for gradient, (_, variable) in zip(back, pairs, strict=True)]


class _ByName:
    """Base class of processors that select variables by name.

    Attributes:
        unmatched: the regular expressions that no variable's name has matched so far.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        try:
            self._patterns = [re.compile(pattern) for pattern in patterns]
        except re.error as error:
            raise ConfigError(f"{type(self).__name__}: not a regular expression: {error.pattern!r}, {error}") from error
        self.unmatched = [pattern.pattern for pattern in self._patterns]

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with processed gradients."""
        return [(self._processed(gradient, variable), variable) for gradient, variable in pairs]

    def _processed(self, gradient: Any, variable: Any) -> Any:
        name = variable_name(variable)
        index = next((i for i, pattern in enumerate(self._patterns) if pattern.fullmatch(name)), None)
        if index is None:
            return gradient
        if (pattern := self._patterns[index].pattern) in self.unmatched:
            self.unmatched.remove(pattern)
        return None if gradient is None else self._process(gradient, variable, index)

    def _process(self, gradient: Any, variable: Any, index: int) -> Any:
        """Process the gradient of a variable; `index` is that of the first pattern that matches its name."""
        raise NotImplementedError


class MapGradient(_ByName):
    """Apply `fn` to the gradient of each variable whose name matches.

    Args:
        fn: a function of a gradient, or of a gradient and its variable, that returns the new gradient, or None to leave
            the variable unchanged. The gradient is a tensor or `tf.IndexedSlices`.
        regex: a regular expression for whole names of variables, without the `:0`.
    """

    def __init__(self, fn: Callable[..., Any], regex: str = ".*") -> None:
        super().__init__([regex])
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(fn).parameters.values()
        needed = [one for one in parameters if one.kind in positional and one.default is one.empty]
        self.fn, self._arguments = fn, max(len(needed), 1)

    def _process(self, gradient: Any, variable: Any, index: int) -> Any:
        return self.fn(*(gradient, variable)[: self._arguments])


class ScaleGradient(_ByName):
    """Multiply gradients by a factor that depends on the variable's name, for learning rates per layer.

    An optimizer that normalizes its gradients, such as Adam, cancels a constant factor. A factor of 0 leaves the
    variable unchanged; to save its optimizer slots, too, use `model.trainable_variables.filter_regex`.

    Args:
        factors: a dict {regex: factor}, a pair (regex, factor), or a list of pairs. A regex matches whole names of
            variables, without the `:0`, and the first match counts. Other gradients do not change.
    """

    def __init__(self, factors: Mapping[str, float] | tuple[str, float] | Sequence[tuple[str, float]]) -> None:
        if isinstance(factors, tuple) and isinstance(factors[0], str):
            factors = [factors]
        given: list[Any] = list(factors.items() if isinstance(factors, Mapping) else factors)
        super().__init__(regex for regex, _ in given)
        self.factors = [factor for _, factor in given]

    def _process(self, gradient: Any, variable: Any, index: int) -> Any:
        factor = self.factors[index]
        return on_values(lambda values: values * tf.cast(factor, values.dtype), gradient) if factor else None


class SummaryGradient(_ByName):
    """Write a histogram of each gradient, and its root mean square, with `tf.summary`; `Summaries` records them.

    The summaries are named ``<variable>-grad`` and ``<variable>-grad/rms``. For a sparse gradient, only the existing
    rows count. Steps that are not recorded have no extra cost.

    Args:
        regex: a regular expression for whole names of variables, without the `:0`.
    """

    def __init__(self, regex: str = ".*") -> None:
        super().__init__([regex])

    def _process(self, gradient: Any, variable: Any, index: int) -> Any:
        name, values = f"{variable_name(variable)}-grad", _values(gradient)
        tf.summary.histogram(name, values)
        tf.summary.scalar(f"{name}/rms", tf.sqrt(tf.reduce_mean(tf.square(values))))
        return gradient


class PrintGradient(_ByName):
    """Print each gradient's mean, root mean square, minimum and maximum in every step, on the first tower.

    Args:
        regex: a regular expression for whole names of variables, without the `:0`.
    """

    def __init__(self, regex: str = ".*") -> None:
        super().__init__([regex])

    def _process(self, gradient: Any, variable: Any, index: int) -> Any:
        if tower_index():
            return gradient
        values = _values(gradient)
        mean, rms = tf.reduce_mean(values), tf.sqrt(tf.reduce_mean(tf.square(values)))
        words = ["mean", mean, "rms", rms, "min", tf.reduce_min(values), "max", tf.reduce_max(values)]
        tf.print(f"gradient of {variable_name(variable)}:", *words, output_stream=sys.stdout)
        return gradient


class CheckGradient:
    """Fail the step with a `tf.errors.InvalidArgumentError` that names a variable with a non-finite gradient.

    With ``mixed_float16``, whose loss scale overflows now and then, use the callback `StopOnNaN` instead.
    """

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with checked gradients."""
        return [(self._checked(gradient, variable_name(variable)), variable) for gradient, variable in pairs]

    def _checked(self, gradient: Any, name: str) -> Any:
        message = f"the gradient of {name} is not finite"
        return on_values(lambda values: tf.debugging.check_numerics(values, message), gradient)


def global_norm(pairs: Sequence[Pair]) -> tf.Tensor:
    """Return the common L2 norm of all gradients, a float32 scalar."""
    gradients = [tf.cast(summed(gradient), tf.float32) for gradient, _ in drop_missing(pairs)]
    return tf.linalg.global_norm(gradients)


def on_values(function: Callable[[Any], tf.Tensor], gradient: Any) -> Any:
    """Apply `function` to the tensor of a dense gradient or to the rows of a sparse one; None stays None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def divide(gradient: Any, divisor: tf.Tensor) -> Any:
    """Divide a gradient or a scalar."""
    return on_values(lambda values: values / tf.cast(divisor, values.dtype), gradient)


def summed(gradient: Any, *, dense: bool = False) -> Any:
    """Sum the rows of a sparse gradient that have the same index. Other gradients are returned unchanged.

    Clipping, norms and squares, which most optimizers use, are only correct for the sum.

    Args:
        gradient: a tensor, `tf.IndexedSlices` or None.
        dense: return a dense tensor, which is faster if the optimizer updates all rows anyway.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if dense:
        return tf.convert_to_tensor(gradient)
    indices, rows = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, rows, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def _values(gradient: Any) -> tf.Tensor:
    """Return a gradient's values as float32; for a sparse gradient, those of the existing rows."""
    gradient = summed(gradient)
    return tf.cast(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient, tf.float32)


def variable_name(variable: Any) -> str:
    """Return the name of a variable, without the ``:0``, for matching with regular expressions."""
    held = held_by(variable) if isinstance(variable, KerasVariable) else variable
    name = getattr(held, NAME, None) or (variable.path if held is not variable else variable.name)
    return str(name).removesuffix(":0")
