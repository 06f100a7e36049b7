"""The Keras optimizer that the config asks for, and processors of the gradients on their way to it.

A gradient processor is a callable on a list of (gradient, variable) pairs that returns such a list. It runs inside the
compiled step, so it uses TensorFlow ops only. A gradient is a tensor, a `tf.IndexedSlices` (of an embedding), or None
when the loss does not depend on the variable; every processor here passes None on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from prototrain import schedules
from prototrain.config import Config
from prototrain.config.optimizer_keys import KERAS_OPTIMIZERS
from prototrain.errors import ConfigError

Pair = tuple[Any, Any]
"""(gradient: tf.Tensor, tf.IndexedSlices or None; variable: tf.Variable or keras.Variable)."""

GradientProcessor = Callable[[Sequence[Pair]], list[Pair]]

_METHOD = "model.optimizer.method"


def make_optimizer(config: Config, *, without_schedule: float | None = None) -> keras.optimizers.Optimizer:
    """Return the optimizer that `model.optimizer.*` describes, at the learning rate of step 0.

    `msgd` and `sgd` are `keras.optimizers.SGD` with and without momentum; all others are their namesakes. An
    optimizer instance or factory keeps its own learning rate if the config has no schedule.

    Args:
        config: the model's.
        without_schedule: the learning rate of a named method if the config has no schedule, because a callback is
            going to set it; None to refuse that.

    Raises:
        ConfigError: no method is set; a named method has no `model.lr_schedule.method`; an instance is built
            already; or a factory returns something else than a new Keras optimizer.
    """
    method = config[_METHOD]
    schedule = schedules.from_config(config)
    if isinstance(method, str):
        rate = without_schedule if schedule is None else float(schedule(0))
        if rate is None:
            raise ConfigError(f"model.lr_schedule.method is not set; the optimizer {method!r} needs a learning rate")
        return _named(method, rate, config)
    optimizer = _given(method)
    if schedule is not None:
        try:
            optimizer.learning_rate = float(schedule(0))
        except (AttributeError, TypeError) as error:  # Keras refuses where the rate is not a variable
            where = f"{_METHOD}: the optimizer has a learning-rate schedule of its own"
            raise ConfigError(f"{where}; give it a number, or leave model.lr_schedule.method unset") from error
    return optimizer


def update_with(optimizer: keras.optimizers.Optimizer, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Update variables as Keras does: by the optimizer's `apply_gradients`, in which a subclass may do more."""
    if getattr(optimizer.apply_gradients, "__func__", None) is keras.optimizers.Optimizer.apply_gradients:
        optimizer.apply(gradients, variables)  # which is all that it does
    else:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


def _named(method: str, learning_rate: float, config: Config) -> keras.optimizers.Optimizer:
    def options(**names: str) -> dict[str, Any]:
        return {keras_name: config[f"model.optimizer.{method}.{name}"] for keras_name, name in names.items()}

    match method:
        case "sgd":
            return keras.optimizers.SGD(learning_rate)
        case "msgd":
            return keras.optimizers.SGD(learning_rate, **options(momentum="momentum", nesterov="use_nesterov"))
        case "adam":
            return Adam(learning_rate, **options(beta_1="beta1", beta_2="beta2", epsilon="epsilon"))
    if method in KERAS_OPTIMIZERS:
        class_name, arguments = KERAS_OPTIMIZERS[method]
        return getattr(keras.optimizers, class_name)(learning_rate, **options(**{name: name for name in arguments}))
    names = options(rho="decay", momentum="momentum", epsilon="epsilon", centered="centered")
    return keras.optimizers.RMSprop(learning_rate, **names)


class Adam(keras.optimizers.Adam):  # type: ignore[misc]
    """Keras's Adam (arXiv:1412.6980) in half the ops; on a CPU with the same bits.

    In a small model the update has most of a step's ops, and each costs as much as what it computes. The step size is
    computed once, not per variable, and TensorFlow's fused ops of other optimizers take over some of the arithmetic.
    Its fused Adam does not: it is split among threads even for ten numbers, and slower than Keras's.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._of_update = _OfUpdate()

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update the variables, see `keras.optimizers.Optimizer.apply`."""
        self._of_update.step_sizes = {}
        super().apply(grads, trainable_variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        if isinstance(gradient, tf.IndexedSlices) or self.amsgrad or variable.dtype not in ("float32", "float64"):
            super().update_step(gradient, variable, learning_rate)
            return
        gradient = tf.cast(gradient, variable.dtype)
        index = self._get_variable_index(variable)
        mean, square = self._momentums[index].value, self._velocities[index].value
        _move_towards(mean, gradient, 1 - self.beta_1)
        _move_towards(square, tf.square(gradient), 1 - self.beta_2)
        # Without its slots being updated, this is `variable -= step_size * mean / (sqrt(square) + epsilon)`.
        tf.raw_ops.ResourceApplyAdagradV2(
            var=variable.handle,
            accum=square.handle,
            lr=self._step_size(variable, learning_rate),
            epsilon=tf.constant(self.epsilon, variable.dtype),
            grad=tf.convert_to_tensor(mean),
            update_slots=False,
        )

    def _step_size(self, variable: Any, learning_rate: Any) -> tf.Tensor:
        sizes, kind = self._of_update.step_sizes, (variable.dtype, variable.device)
        if kind not in sizes:
            step = tf.cast(self.iterations.value + 1, variable.dtype)
            powers = [tf.pow(tf.cast(beta, variable.dtype), step) for beta in (self.beta_1, self.beta_2)]
            sizes[kind] = tf.cast(learning_rate, variable.dtype) * tf.sqrt(1 - powers[1]) / (1 - powers[0])
        return sizes[kind]


def _move_towards(variable: Any, value: tf.Tensor, part: float) -> None:
    """`variable += part * (value - variable)`, in two ops."""
    part = tf.constant(part, value.dtype)
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=part, delta=variable - value)


class _OfUpdate:
    """What the variables of one update share. An object of its own, since Keras tracks an optimizer's attributes."""

    step_sizes: dict[Any, tf.Tensor]


def _given(method: Any) -> keras.optimizers.Optimizer:
    made_here = not isinstance(method, keras.optimizers.Optimizer)
    if made_here and not callable(method):
        raise ConfigError(f"{_METHOD}: expected a Keras optimizer or a factory, got {type(method).__name__}")
    if made_here:
        try:
            inspect.signature(method).bind()
        except TypeError as error:
            raise ConfigError(f"{_METHOD}: a factory is called without arguments, but {error}") from error
        except ValueError:
            pass  # written in C and without a signature: the call will tell
    optimizer = method() if made_here else method
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(f"{_METHOD}: the factory must return a Keras optimizer, got {type(optimizer).__name__}")
    if optimizer.built:
        advice = "return a new one at each call" if made_here else "give a factory, such as lambda: Adam(1e-3)"
        raise ConfigError(f"{_METHOD}: this {type(optimizer).__name__} is already built by another trainer; {advice}")
    return optimizer


def named_slots(optimizer: keras.optimizers.Optimizer, trained: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The variables of a built optimizer with the names that checkpoints have for them.

    Args:
        optimizer: has the variables.
        trained: the variables that it was built for, by their names in a checkpoint; none if its own names are to be
            taken.
    """
    stems = {_stem(getattr(given, "path", given.name)): slot_stem(name) for name, given in trained.items()}
    for variable in optimizer.variables:
        slot = variable.path.partition("/")[2]  # in front of it stands the optimizer's name, numbered by process
        fitting = [stem for stem in stems if slot.startswith(f"{stem}_")]
        longest = max(fitting, key=len, default="")
        yield stems.get(longest, "") + slot.removeprefix(longest), variable


def slot_stem(name: str) -> str:
    """What the names of a variable's slots begin with in a checkpoint."""
    return f"{_stem(name)}_0"  # as Keras makes them of TensorFlow's names, which end with the number of an output


def _stem(name: str) -> str:
    return name.replace("/", "_").replace(":", "_")


def processors_from_config(config: Config) -> list[GradientProcessor]:
    """Return the processors that `model.clip_gradients*` asks for: by value first, then by global norm."""
    key = "model.clip_gradients"
    processors: list[GradientProcessor] = []
    if config[key]:
        processors.append(ClipByValue(config[f"{key}.minval"], config[f"{key}.maxval"]))
    if config[f"{key}.global_norm"] is not None:
        processors.append(ClipByGlobalNorm(config[f"{key}.global_norm"]))
    return processors


def drop_missing(pairs: Sequence[Pair]) -> list[Pair]:
    """Leave out the variables that the loss does not depend on."""
    return [(gradient, variable) for gradient, variable in pairs if gradient is not None]


class ClipByValue:
    """Clip each element of each gradient to [`minval`, `maxval`].

    Of a sparse gradient, only the rows that are there are clipped, after repeated rows have been added up.

    Raises:
        ConfigError: `minval` is not below `maxval`.
    """

    def __init__(self, minval: float, maxval: float) -> None:
        if not minval < maxval:
            raise ConfigError(f"ClipByValue: minval must be below maxval, got {minval} and {maxval}")
        self.minval, self.maxval = minval, maxval

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with clipped gradients."""
        return [(_on_values(self._clipped, _summed(gradient)), variable) for gradient, variable in pairs]

    def _clipped(self, values: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(values, self.minval, self.maxval)


class ClipByGlobalNorm:
    """Scale all gradients together so that their common L2 norm is at most `norm` (arXiv:1211.5063).

    When the norm is not finite, all gradients become NaN, so that a check sees it.

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
        clipped, _ = tf.clip_by_global_norm([_summed(gradient) for gradient, _ in pairs], self.norm)
        return [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs, strict=True)]


class MapGradient:
    """Apply `fn` to the gradient of each variable whose name matches.

    Args:
        fn: from a gradient, as it comes (a tensor or `tf.IndexedSlices`), to its replacement, or None to drop it.
        regex: `re.match`ed with the variable's name, without the `:0`.

    Raises:
        ConfigError: `regex` is not a regular expression.
    """

    def __init__(self, fn: Callable[[Any], Any], regex: str = ".*") -> None:
        self.fn, self.pattern = fn, _compiled(regex)

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with mapped gradients."""
        return [(self._mapped(gradient, variable), variable) for gradient, variable in pairs]

    def _mapped(self, gradient: Any, variable: Any) -> Any:
        return self.fn(gradient) if gradient is not None and self.pattern.match(_name(variable)) else gradient


class ScaleGradient:
    """Multiply gradients by a factor that depends on the variable's name, for learning rates per layer.

    An optimizer that normalises its gradients, such as Adam, undoes a constant factor. A factor of 0 gives gradients of
    0, under which momentum still moves; to freeze variables use `model.trainable_variables.filter_regex`.

    Args:
        factors: {regex: factor}; a regex is `re.match`ed with the variable's name without the `:0`, and the first that
            matches counts. Other gradients stay as they are.

    Raises:
        ConfigError: a key is not a regular expression.
    """

    def __init__(self, factors: Mapping[str, float]) -> None:
        self.factors = [(_compiled(regex), factor) for regex, factor in factors.items()]

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with scaled gradients."""
        return [(self._scaled(gradient, variable), variable) for gradient, variable in pairs]

    def _scaled(self, gradient: Any, variable: Any) -> Any:
        factor = next((factor for pattern, factor in self.factors if pattern.match(_name(variable))), None)
        if factor is None:
            return gradient
        return _on_values(lambda values: values * tf.cast(factor, values.dtype), gradient)


class CheckGradient:
    """Fail the step, naming the variable, when a gradient holds a NaN or an infinity.

    The step then raises `tf.errors.InvalidArgumentError`.
    """

    def __call__(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with checked gradients."""
        return [(self._checked(gradient, variable), variable) for gradient, variable in pairs]

    def _checked(self, gradient: Any, variable: Any) -> Any:
        message = f"the gradient of {_name(variable)} is not finite"
        return _on_values(lambda values: tf.debugging.check_numerics(values, message), gradient)


def global_norm(pairs: Sequence[Pair]) -> tf.Tensor:
    """The L2 norm of all gradients together, float32."""
    gradients = [tf.cast(_summed(gradient), tf.float32) for gradient, _ in drop_missing(pairs)]
    return tf.linalg.global_norm(gradients)


def _on_values(function: Callable[[tf.Tensor], tf.Tensor], gradient: Any) -> Any:
    """Apply `function` to a gradient's tensor, be it dense or sparse, or to nothing."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def _summed(gradient: Any) -> Any:
    """Add up the rows of a sparse gradient that belong to the same index: only their sum can be clipped or measured."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, rows = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, rows, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def _name(variable: Any) -> str:
    name = variable.path if isinstance(variable, keras.Variable) else variable.name
    return str(name).removesuffix(":0")


def _compiled(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        raise ConfigError(f"{regex!r} is not a regular expression: {error}") from error
