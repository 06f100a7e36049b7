"""Evaluating a Keras model beside its training: by its own `evaluate`, which leaves the training as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.checkpoint.random import random_state_kept
from prototrain.model.evaluation import first_batches
from prototrain.model.keras_hooks import restoring_values
from prototrain.system.signals import StopRequest


def evaluated(
    model: keras.Model, data: tf.data.Dataset, batches: int, *, stop: StopRequest, watching: Sequence[Any] = ()
) -> dict[str, float] | None:
    """Measure a model on a dataset; its metrics go on counting where they were.

    Args:
        model: compiled.
        data: batches, as `keras.Model.evaluate` takes them.
        batches: how many of them; 0 for all.
        stop: ends it when it is requested.
        watching: callbacks of Keras.

    Returns:
        the metrics by name, or None if a stop was requested.
    """
    callbacks = keras.callbacks.CallbackList([_LeaveOff(stop), *watching], model=model)
    of_training = [(variable, tf.identity(variable)) for variable in model.metrics_variables]
    found: dict[str, float] = model.evaluate(
        data, steps=batches or None, callbacks=callbacks, verbose=0, return_dict=True
    )
    for variable, value in of_training:
        variable.assign(value)
    return None if stop.signum is not None else _scalars(found)


def rehearsed(model: keras.Model, name: str, data: tf.data.Dataset, batches: int, *, stop: StopRequest) -> list[str]:
    """Evaluate two batches at most, and leave everything as it was; raises what an evaluation would raise.

    Args:
        model: compiled.
        name: of the dataset, for what is said if it takes long.
        data: batches, as `keras.Model.evaluate` takes them.
        batches: how many of them an evaluation is of; 0 for all.
        stop: ends the wait for them when it is requested.

    Returns:
        the names of the metrics.
    """
    model.test_function = None  # one that was traced before does not tell which variables it uses
    with random_state_kept(), restoring_values():
        return list(_scalars(model.evaluate(first_batches(name, data, batches, stop), verbose=0, return_dict=True)))


def _scalars(found: Mapping[str, Any]) -> dict[str, float]:
    """The metrics by name; of one that gives a number for each class, such as `F1Score`, each as ``<name>/<class>``."""
    single: dict[str, float] = {}
    for name, value in found.items():
        numbers = np.ravel(value).tolist()
        single |= {name: numbers[0]} if len(numbers) == 1 else {f"{name}/{n}": one for n, one in enumerate(numbers)}
    return single


class _LeaveOff(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends an evaluation when a stop is requested."""

    def __init__(self, stop: StopRequest) -> None:
        super().__init__()
        self._stop = stop

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_evaluating = self._stop.signum is not None
