"""`LoggingTensorHook`: prints tensors of a training step, by what they are called in a `model_fn`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.callbacks import Callback, ProcessTensors
from prototrain.errors import CallbackError, ModelError

_OF_STEP = ("global_step", "learning_rate", "loss_l2", "loss_layers", "loss_total")


class LoggingTensorHook(ProcessTensors):
    """Prints tensors of the step at an interval, and leaves the steps in between alone.

    Args:
        tensors: names, or names or tensors by what they are called in the line that is printed. A name is that of an
            operation (``tf.identity(x, name="x")``, also ``"x:0"``), of a prediction, a metric or a scalar of the step.
            Tensors themselves are for a hook that `model_fn` makes and gives to `EstimatorSpec(training_hooks=...)`.
        every_n_iter: steps between two lines.
        every_n_secs: seconds between two lines.
        at_end: whether to print at the end of the training, too.
        formatter: from values by name to the line.

    Raises:
        CallbackError: there is no interval, or there are two.
    """

    def __init__(
        self,
        tensors: Sequence[str] | Mapping[str, Any],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        given = dict(tensors) if isinstance(tensors, Mapping) else {name: name for name in tensors}
        if (every_n_iter is None) == (every_n_secs is None) and not (at_end and every_n_iter is None):
            raise CallbackError("LoggingTensorHook: give every_n_iter or every_n_secs, one of the two")
        self.tensors = given
        self.at_end = at_end
        self._steps, self._seconds = every_n_iter, every_n_secs
        self._formatter = formatter
        super().__init__([self._name(tag, value) for tag, value in given.items()])

    @staticmethod
    def _name(tag: str, value: Any) -> str:
        return value.removesuffix(":0") if isinstance(value, str) else tag

    def scheduled(self) -> Callback:
        """The callback that runs at the hook's own interval."""
        at_end_only = self._steps is None and self._seconds is None
        return self.every(steps=sys.maxsize if at_end_only else self._steps, seconds=self._seconds)

    def watches(self) -> Collection[str] | None:
        return [name for name in self.names if name not in _OF_STEP]

    def trigger(self) -> None:
        trainer = self.trainer
        seen = {**trainer.outputs, **trainer.watched, "global_step": trainer.global_step}
        if trainer.is_compiled and not trainer.watched and set(self.names) - seen.keys():
            return  # the run ended at a step that nobody could know to be its last
        missing = [name for name in self.names if name not in seen]
        if missing:
            raise CallbackError(
                f"LoggingTensorHook: there is no {missing[0]!r} in the step; there are {', '.join(seen)}"
            )
        values = {tag: np.asarray(seen[name]) for tag, name in zip(self.tensors, self.names, strict=True)}
        values = {tag: value[()] if value.ndim == 0 else value for tag, value in values.items()}
        with np.printoptions(suppress=True):
            line = ", ".join(f"{tag} = {value}" for tag, value in values.items())
            trainer.log(self._formatter(values) if self._formatter is not None else line)


def logged(hooks: Iterable[Any]) -> dict[str, Any]:
    """The tensors that hooks of a `model_fn` are to print, by their names."""
    given = [item for hook in hooks if isinstance(hook, LoggingTensorHook) for item in hook.tensors.items()]
    found = {tag: tensor for tag, tensor in given if not isinstance(tensor, str)}
    return {tag: one.result() if isinstance(one, keras.metrics.Metric) else one for tag, one in found.items()}


def wanted(hooks: Iterable[Any]) -> set[str]:
    """The names of tensors that hooks want to see."""
    given = [item for hook in hooks if isinstance(hook, LoggingTensorHook) for item in hook.tensors.items()]
    return {value.removesuffix(":0") for _, value in given if isinstance(value, str)} - set(_OF_STEP)


def find_tensors(names: Iterable[str]) -> dict[str, Any]:
    """Tensors that were made under these names in the present graph, the last of each; none where there is no graph.

    Raises:
        ModelError: the last operation of a name gives no tensor.
    """
    if tf.executing_eagerly():
        return {}
    operations = tf.compat.v1.get_default_graph().get_operations()
    found = {}
    for name in names:
        # Graphs put scopes in front, and numbers behind what they have already.
        fitting = [op for op in operations if op.name == name or op.name.endswith(f"/{name}")]
        fitting = fitting or [op for op in operations if re.fullmatch(rf"(.*/)?{re.escape(name)}_\d+", op.name)]
        if fitting and not fitting[-1].outputs:
            raise ModelError(f"LoggingTensorHook: the operation {name!r} gives no tensor")
        if fitting:
            found[name] = fitting[-1].outputs[0]
    return found
