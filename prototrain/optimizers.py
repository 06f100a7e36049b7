"""The Keras optimizer that the config asks for, and the processors of gradients that it asks for.

`prototrain.gradient_processors` has the processors themselves; they can be imported from here as well.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from prototrain import schedules
from prototrain.config import Config
from prototrain.config.optimizer_keys import KERAS_OPTIMIZERS
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
    "slot_stem",
    "update_if",
    "update_with",
]

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
            where = f"{_METHOD}: the optimizer has its own learning-rate schedule"
            raise ConfigError(f"{where}; give it a number, or leave model.lr_schedule.method unset") from error
    return optimizer


def update_with(optimizer: keras.optimizers.Optimizer, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Update variables as Keras does: by the optimizer's `apply_gradients`, in which a subclass may do more."""
    if getattr(optimizer.apply_gradients, "__func__", None) is keras.optimizers.Optimizer.apply_gradients:
        optimizer.apply(gradients, variables)  # which is all that it does
    else:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


def updates_all_rows(optimizer: Any) -> bool:
    """Whether an update with a sparse gradient changes every row of a table, as those with moving averages do."""
    return type(optimizer) in _ALL_ROWS


def update_if(
    condition: tf.Tensor | None, optimizer: keras.optimizers.Optimizer, gradients: list[Any], variables: list[Any]
) -> None:
    """Update variables as `update_with` does, from inside a tower, if a scalar bool of all towers is true or None."""
    if condition is None:
        update_with(optimizer, gradients, variables)
        return

    def apply_everywhere(strategy: tf.distribute.Strategy, condition: Any, gradients: list[Any]) -> None:
        def apply() -> tf.Tensor:
            strategy.run(lambda given: update_with(optimizer, given, variables), args=(gradients,))
            return tf.constant(True)

        # The condition stands between the towers: an update inside one tower cannot be conditional.
        tf.cond(strategy.experimental_local_results(condition)[0], apply, lambda: tf.constant(False))

    tf.distribute.get_replica_context().merge_call(apply_everywhere, args=(condition, gradients))


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
        # Without its slots being updated, this is `variable -= step_size * mean / (sqrt(square) + epsilon)`.
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
        """Make what the updates of all variables of one type and device have in common, once for all of them."""
        made, key = self._of_update.made, (what, variable.dtype, variable.device)
        if key not in made:
            made[key] = make()
        return made[key]


_ALL_ROWS = {Adam} | {getattr(keras.optimizers, name) for name in ("Adam", "AdamW", "Adamax", "Nadam")}


def _move_towards(variable: Any, value: tf.Tensor, part: tf.Tensor) -> None:
    """`variable += part * (value - variable)`, in two ops."""
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=part, delta=variable - value)


class _OfUpdate:
    """Values that one update computes once. A separate object, since Keras tracks an optimizer's attributes."""

    made: dict[Any, tf.Tensor]


def _given(method: Any) -> keras.optimizers.Optimizer:
    made_here = not isinstance(method, keras.optimizers.Optimizer)
    if made_here:
        try:
            inspect.signature(method).bind()
        except TypeError as error:
            raise ConfigError(f"{_METHOD}: give a Keras optimizer, or a factory without arguments: {error}") from error
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

    `trained` has the variables that it was built for, by their names in a checkpoint; without them its own names are
    taken.
    """
    stems: dict[str, list[str]] = {}  # several variables of TensorFlow may have one name
    for name, given in trained.items():
        stems.setdefault(_stem(getattr(given, "path", given.name)), []).append(slot_stem(name))
    seen: Counter[str] = Counter()
    for variable in optimizer.variables:
        slot = variable.path.partition("/")[2]  # in front of it stands the optimizer's name, numbered by process
        ends = (at for at in range(len(slot) - 1, -1, -1) if slot[at] == "_")
        longest = next((slot[:at] for at in ends if slot[:at] in stems), "")
        named = stems.get(longest, [""])
        found = named[min(seen[slot], len(named) - 1)] + slot.removeprefix(longest)
        yield (f"{found}_{seen[found]}" if seen[found] else found), variable
        seen.update({slot, found})


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
