"""A value that a callback may change while a run lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from prototrain.errors import CallbackError
from prototrain.tf_private import KerasVariable

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class HyperParam:
    """A variable, or an attribute of a Python object, that holds one number.

    A traced step reads a Python attribute once, when it is traced: a value that the model uses must be a variable.

        HyperParam("learning_rate")             # the optimizer's
        HyperParam(rate, name="dropout_rate")   # a tf.Variable
        HyperParam(sampler, "temperature")      # an attribute

    Args:
        target: "learning_rate", the name of a variable in `trainer.state`, a variable, or an object with `attribute`.
        attribute: the attribute's name, for an object.
        name: what the value is called in metrics.jsonl, as ``hyper/<name>``, and in hyper.txt.

    Raises:
        CallbackError: the target is none of these, or has no name.
    """

    def __init__(self, target: Any, attribute: str | None = None, *, name: str | None = None) -> None:
        is_variable = isinstance(target, (tf.Variable, KerasVariable))
        if attribute is None and not is_variable and not isinstance(target, str):
            raise CallbackError(
                f"HyperParam takes a variable, a variable's name, or an object and the name of an attribute: {target!r}"
            )
        own_name = str(target.name).split(":")[0] if is_variable else target if isinstance(target, str) else None
        self.name: str = name or attribute or own_name or ""
        self._given = target
        self._trainer: Trainer | None = None  # where what was given by name is looked up
        self._attribute = attribute
        self._values: tuple[float, float] | None = None  # before the first run, and set last

    def connect(self, trainer: Trainer) -> None:
        """Find a variable that was given by name, in this trainer, for a run that begins.

        The target gets the value back that it had before an earlier run changed it, unless the trainer trains further
        or something else has changed the value since.

        Raises:
            CallbackError: there is no such variable or attribute.
        """
        if self._attribute is not None:
            if not hasattr(self._given, self._attribute):
                raise CallbackError(f"HyperParam: {type(self._given).__name__} has no attribute {self._attribute!r}")
        elif isinstance(self._given, str):
            self._find(self._given, trainer)
            self._trainer, self._values = trainer, None
        if trainer.global_step == 0 and self._values is not None and self.get() == self._values[1]:
            self._put(self._values[0])
            self._values = None

    @property
    def _target(self) -> Any:
        """What holds the value; a name is looked up each time, since unfreezing makes a new optimizer."""
        return self._given if self._trainer is None else self._find(self._given, self._trainer)

    @staticmethod
    def _find(name: str, trainer: Trainer) -> Any:
        if name == "learning_rate" and trainer.optimizer is not None:
            return trainer.optimizer.learning_rate
        found = trainer.state.get(name)
        if not isinstance(found, (tf.Variable, KerasVariable)):
            known = [key for key, entry in trainer.state.items() if isinstance(entry, (tf.Variable, KerasVariable))]
            raise CallbackError(
                f"HyperParam: the trainer has no variable {name!r}; it has: {', '.join(known) or 'none'}"
            )
        return found

    def get(self) -> float:
        """The value in force."""
        if self._attribute is not None:
            return float(getattr(self._target, self._attribute))
        return float(tf.convert_to_tensor(self._target))

    def set(self, value: float) -> None:
        """Put another value in force."""
        first = self.get() if self._values is None else self._values[0]
        self._put(value)
        self._values = (first, self.get())

    def _put(self, value: float) -> None:
        if self._attribute is not None:
            setattr(self._target, self._attribute, value)
        else:
            # As an array, since TensorFlow keeps every Python number that it has made a tensor of.
            self._target.assign(np.asarray(value, tf.as_dtype(self._target.dtype).as_numpy_dtype))

    def is_learning_rate_of(self, trainer: Trainer) -> bool:
        """Whether this is the learning rate of the trainer's optimizer."""
        return trainer.optimizer is not None and self._target is trainer.optimizer.learning_rate

    def __repr__(self) -> str:
        return f"HyperParam({self.name!r})"
