"""Creates the optimizer and the gradient processors that a config describes.

The gradient processors of `prototrain.gradient_processors` can also be imported from this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from prototrain import schedules
from prototrain.config import Config
from prototrain.config.schema import KERAS_OPTIMIZERS
from prototrain.errors import ConfigError
from prototrain.gradient_processors import (
    CheckGradient,
    ClipByGlobalNorm,
    ClipByValue,
    GradientProcessor,
    MapGradient,
    Pair,
    PrintGradient,
    ScaleGradient,
    SummaryGradient,
    drop_missing,
    global_norm,
)
from prototrain.tf_private import adam_slots

__all__ = [
    "Adam",
    "CheckGradient",
    "ClipByGlobalNorm",
    "ClipByValue",
    "GradientProcessor",
    "MapGradient",
    "Pair",
    "PrintGradient",
    "ScaleGradient",
    "SummaryGradient",
    "drop_missing",
    "global_norm",
    "make_optimizer",
    "named_slots",
    "processors_from_config",
    "update_if",
    "update_with",
]

_METHOD = "model.optimizer.method"


def make_optimizer(config: Config, *, without_schedule: float | None = None) -> keras.optimizers.Optimizer:
    """Return the optimizer that `model.optimizer.*` describes, at the learning rate of step 0.

    `msgd` and `sgd` are `keras.optimizers.SGD` with and without momentum; all other methods are the Keras optimizers of
    the same name. An optimizer instance or factory keeps its own learning rate if the config has no schedule.

    Args:
        config: the model's config.
        without_schedule: the learning rate of a named method if the config has no schedule, for a callback to replace.
            None raises an error in this case.

    Raises:
        ConfigError: no method is set; a named method has no `model.lr_schedule.method`; an instance is built
            already; or a factory does not return a new Keras optimizer.
    """
    method = config[_METHOD]
    schedule = schedules.from_config(config)
    if isinstance(method, str):
        rate = without_schedule if schedule is None else float(schedule(0))
        if rate is None:
            raise ConfigError(
                f"model.lr_schedule.method is not set; the optimizer {method!r} needs a learning rate: set the method, "
                "or give make_optimizer(without_schedule=) a rate if a LearningRate callback sets it"
            )
        kind, arguments = _METHODS[method]
        options = {argument: config[f"model.optimizer.{method}.{key}"] for key, argument in arguments.items()}
        return kind(rate, **options)
    optimizer = _given(method)
    if schedule is not None:
        try:
            optimizer.learning_rate = float(schedule(0))
        except (AttributeError, TypeError) as error:  # Keras raises this if the rate is not a variable
            where = f"{_METHOD}: the optimizer has its own learning-rate schedule"
            raise ConfigError(f"{where}; give it a number, or leave model.lr_schedule.method unset") from error
    return optimizer


def update_with(optimizer: keras.optimizers.Optimizer, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Update variables with the optimizer's `apply_gradients`, which a subclass may override, as Keras does."""
    if getattr(optimizer.apply_gradients, "__func__", None) is keras.optimizers.Optimizer.apply_gradients:
        optimizer.apply(gradients, variables)  # Keras's `apply_gradients` only calls this
    else:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


def updates_all_rows(optimizer: Any) -> bool:
    """Return whether an update with a sparse gradient changes all rows, as moving averages of gradients do."""
    return type(optimizer) in _ALL_ROWS


def keeps_non_finite(optimizer: Any) -> bool:
    """Return whether the optimizer's slots stay non-finite after a gradient that is not finite.

    They are averages of gradients. This is not known of other optimizers than those of the config, nor if the optimizer
    clips gradients.
    """
    clips = [getattr(optimizer, name, None) for name in ("clipnorm", "clipvalue", "global_clipnorm")]
    return type(optimizer) in _AVERAGING and clips == [None] * 3


def update_if(
    condition: tf.Tensor | None, optimizer: keras.optimizers.Optimizer, gradients: list[Any], variables: list[Any]
) -> None:
    """Update variables as `update_with` does, from inside a tower, if `condition` is true or None.

    The condition is a scalar bool that is the same in all towers.
    """
    if condition is None:
        update_with(optimizer, gradients, variables)
        return

    def apply_everywhere(strategy: tf.distribute.Strategy, condition: Any, gradients: list[Any]) -> None:
        def apply() -> tf.Tensor:
            strategy.run(lambda given: update_with(optimizer, given, variables), args=(gradients,))
            return tf.constant(True)

        # The condition is evaluated in cross-replica context: an update inside a tower cannot be conditional.
        tf.cond(strategy.experimental_local_results(condition)[0], apply, lambda: tf.constant(False))

    tf.distribute.get_replica_context().merge_call(apply_everywhere, args=(condition, gradients))


class Adam(keras.optimizers.Adam):  # type: ignore[misc]
    """Keras's Adam (arXiv:1412.6980) with half the ops. On a CPU, results are the same bit for bit.

    In a small model, most ops of a step belong to the update, and their overhead matters. This class computes the step
    size once, not per variable, and uses TensorFlow's fused ops of other optimizers for some of the arithmetic.
    TensorFlow's fused Adam op is not used: it starts several threads even for ten numbers and is slower than Keras.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._of_update = SimpleNamespace(made={})  # values of one update; Keras does not track this kind of object

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update the variables; see `keras.optimizers.Optimizer.apply`."""
        self._of_update.made = {}
        super().apply(grads, trainable_variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        is_plain = not (isinstance(gradient, tf.IndexedSlices) or self.amsgrad)
        slots = adam_slots(self, variable) if is_plain and variable.dtype in ("float32", "float64") else None
        if slots is None:
            super().update_step(gradient, variable, learning_rate)
            return
        gradient = tf.cast(gradient, variable.dtype)
        mean, square = (slot.value for slot in slots)
        _move_towards(mean, gradient, self._constant(variable, 1 - self.beta_1))
        _move_towards(square, tf.square(gradient), self._constant(variable, 1 - self.beta_2))
        # With update_slots=False, this computes `variable -= step_size * mean / (sqrt(square) + epsilon)`.
        tf.raw_ops.ResourceApplyAdagradV2(
            var=variable.handle,
            accum=square.handle,
            lr=self._step_size(variable, learning_rate),
            epsilon=self._constant(variable, self.epsilon),
            grad=tf.convert_to_tensor(mean),
            update_slots=False,
        )

    def _constant(self, variable: Any, value: float) -> tf.Tensor:
        return self._once(variable, value, lambda: tf.constant(value, variable.dtype))

    def _step_size(self, variable: Any, learning_rate: Any) -> tf.Tensor:
        def compute() -> tf.Tensor:
            step = tf.cast(self.iterations.value + 1, variable.dtype)
            powers = [tf.pow(tf.cast(beta, variable.dtype), step) for beta in (self.beta_1, self.beta_2)]
            return tf.cast(learning_rate, variable.dtype) * tf.sqrt(1 - powers[1]) / (1 - powers[0])

        return self._once(variable, "step size", compute)

    def _once(self, variable: Any, what: Any, make: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Create a value once per update, for all variables of the same dtype and device."""
        made: dict[Any, tf.Tensor] = self._of_update.made
        key = what, variable.dtype, variable.device
        if key not in made:
            made[key] = make()
        return made[key]


# The optimizer of each method, and its arguments by the names of their keys.
_METHODS: dict[str, tuple[Any, dict[str, str]]] = {
    "sgd": (keras.optimizers.SGD, {}),
    "msgd": (keras.optimizers.SGD, {"momentum": "momentum", "use_nesterov": "nesterov"}),
    "adam": (Adam, {"beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon"}),
    "rmsprop": (
        keras.optimizers.RMSprop,
        {"decay": "rho", "momentum": "momentum", "epsilon": "epsilon", "centered": "centered"},
    ),
    **{
        method: (getattr(keras.optimizers, name), {argument: argument for argument in arguments})
        for method, (name, arguments) in KERAS_OPTIMIZERS.items()
    },
}
_ALL_ROWS = {Adam} | {getattr(keras.optimizers, name) for name in ("Adam", "AdamW", "Adamax", "Nadam")}
# Not SGD: TensorFlow computes its momentum with other last bits if the gradient is not also used by a check.
_AVERAGING = {Adam, keras.optimizers.RMSprop}
_AVERAGING |= {getattr(keras.optimizers, name) for name, _ in KERAS_OPTIMIZERS.values()}


def _move_towards(variable: Any, value: tf.Tensor, part: tf.Tensor) -> None:
    """Compute `variable += part * (value - variable)` with two ops."""
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=part, delta=variable - value)


def _given(method: Any) -> keras.optimizers.Optimizer:
    made_here = not isinstance(method, keras.optimizers.Optimizer)
    optimizer = method() if made_here else method
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(f"{_METHOD}: the factory must return a Keras optimizer, got {type(optimizer).__name__}")
    if optimizer.built:
        advice = "return a new one at each call" if made_here else "give a factory, such as lambda: Adam(1e-3)"
        raise ConfigError(f"{_METHOD}: this {type(optimizer).__name__} is already built by another trainer; {advice}")
    return optimizer


def named_slots(optimizer: keras.optimizers.Optimizer, trained: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a built optimizer with their names in checkpoints.

    `trained` has the variables that it was built for, by their names in a checkpoint. If it is empty, the optimizer's
    own names are used.
    """
    stems: dict[str, list[str]] = {}  # several TensorFlow variables may have the same name
    for name, given in trained.items():
        # Keras derives slot names from TensorFlow's names, which end with ":0".
        stems.setdefault(_stem(getattr(given, "path", given.name)), []).append(_stem(f"{name}:0"))
    seen: Counter[str] = Counter()
    for variable in optimizer.variables:
        slot = variable.path.partition("/")[2]  # without the optimizer's name, which is numbered per process
        ends = (at for at in range(len(slot) - 1, -1, -1) if slot[at] == "_")
        longest = next((slot[:at] for at in ends if slot[:at] in stems), "")
        named = stems.get(longest, [""])
        found = named[min(seen[slot], len(named) - 1)] + slot.removeprefix(longest)
        yield (f"{found}_{seen[found]}" if seen[found] else found), variable
        seen.update({slot, found})


def _stem(name: str) -> str:
    return name.replace("/", "_").replace(":", "_")


def processors_from_config(config: Config) -> list[GradientProcessor]:
    """Return the processors for `model.clip_gradients*`: clipping by value, then by global norm."""
    key = "model.clip_gradients"
    processors: list[GradientProcessor] = []
    if config[key]:
        processors.append(ClipByValue(config[f"{key}.minval"], config[f"{key}.maxval"]))
    if config[f"{key}.global_norm"] is not None:
        processors.append(ClipByGlobalNorm(config[f"{key}.global_norm"]))
    return processors
