"""What a `KerasTrainer` and its `fit` are given that cannot be, or that has no effect."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import keras

from prototrain.errors import DataError

# Keys of the config for what a compiled model and its data say themselves, and for what the engine's own step does.
_OF_COMPILE = (
    "model.batch_size",
    "model.lr_schedule",
    "model.mixed_precision",
    "model.optimizer",
)
_OF_ENGINE = ("model.accumulate_steps", "model.clip_gradients", "model.trainable_variables", "model.weight_decay")
_OF_TRAIN = {"allow_changed_data", "fresh", "max_steps", "resume"}  # arguments that `fit` hands on


def check_fit(epochs: Any, initial_epoch: Any, validation_freq: Any, options: Collection[str]) -> None:
    """Check what `fit` was given.

    Args:
        epochs: as there.
        initial_epoch: as there.
        validation_freq: as there.
        options: the names of arguments that `fit` does not have itself.

    Raises:
        DataError: one of them cannot be.
    """
    if initial_epoch:
        raise DataError("fit: leave out initial_epoch: a resumed run is in its epoch by itself")
    if not isinstance(epochs, int) or epochs < 1:
        raise DataError(f"fit: epochs must be a whole number from 1 on, not {epochs!r}")
    if not isinstance(validation_freq, int):
        raise DataError("fit: validation_freq must be a whole number; for single epochs give a callback of your own")
    if unknown := sorted({*options} - _OF_TRAIN):
        raise DataError(f"fit: there is no argument {', '.join(unknown)}")


def check_unused(who: str, what: str, **arguments: tuple[Any, Any]) -> None:
    """Check that no argument was given which has no effect.

    Args:
        who: was given them.
        what: is missing, so that they have none.
        arguments: each with its default.

    Raises:
        DataError: one was.
    """
    given = [
        name
        for name, (value, default) in arguments.items()
        if (value is not None if default is None else value != default)  # an array compares with no None
    ]
    if given:
        raise DataError(f"{who}: without {what} there is no effect of {', '.join(given)}")


def without_effect(model: keras.Model, config: Collection[str], *, has_own_step: bool) -> Iterator[str]:
    """A line for what has no effect on the training of a model.

    Args:
        model: compiled.
        config: the keys that the user has given.
        has_own_step: whether an iteration is the model's own `train_step`.
    """
    if given := [key for key in config if key.startswith(_OF_COMPILE)]:
        said = "what compile() was given, the model's dtype policy and the data say that"
        yield f"without effect are {', '.join(given)}: {said}"
    if has_own_step and (unused := [key for key in config if key.startswith(_OF_ENGINE)]):
        is_stock = getattr(model.train_step, "__func__", None) is keras.Model.train_step
        why = "an optimizer that scales the loss itself" if is_stock else "a train_step of its own"
        yield f"{model.name} has {why}: without effect are {', '.join(unused)}"
    if getattr(model.make_train_function, "__func__", None) is not keras.Model.make_train_function:
        yield f"make_train_function of {model.name} is not called; override train_step"
