"""What a `model_fn` asks TensorFlow 1's graph collections for, answered while one is called.

There are no collections in TensorFlow 2: functions such as `tf.compat.v1.trainable_variables` would give nothing, and a
weight decay that is written with them would be 0 without a word. All of them end up in one method of a graph, and that
is where they are answered.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.model.keras_hooks import present_call
from prototrain.model.layer_cache import BuildCall

_KEYS = tf.compat.v1.GraphKeys
_NO_VARIABLES = "tf.compat.v1.trainable_variables() has those that are trained"
_GONE = {
    _KEYS.GLOBAL_STEP: "give a learning rate that depends on the step to OptimizerSpec(optimizer, learning_rate=...)",
    _KEYS.LOSSES: "add the losses of a model_fn up, and give the sum to EstimatorSpec",
    **dict.fromkeys((_KEYS.GLOBAL_VARIABLES, _KEYS.LOCAL_VARIABLES, _KEYS.MODEL_VARIABLES), _NO_VARIABLES),
    **dict.fromkeys((_KEYS.WEIGHTS, _KEYS.BIASES, _KEYS.MOVING_AVERAGE_VARIABLES), _NO_VARIABLES),
}


def _trainable_variables(call: BuildCall, scope: str | None) -> list[Any]:
    return [variable for variable in call.trainable_variables() if scope is None or re.match(scope, variable.name)]


def _regularization_losses(call: BuildCall, scope: str | None) -> list[Any]:
    if scope is not None:
        raise ModelError("model_fn asks for the regularization losses of a scope, which are not known by scopes here")
    return [tf.cast(loss, tf.float32) for loss in call.take_losses()]


_ANSWERS: dict[str, Callable[[BuildCall, str | None], list[Any]]] = {
    _KEYS.TRAINABLE_VARIABLES: _trainable_variables,
    _KEYS.REGULARIZATION_LOSSES: _regularization_losses,
}


def _is_asked_for_gradients() -> bool:
    """Whether TensorFlow itself asks, which looks for variables that a custom gradient may have made."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(6):  # through functions that ask for it
        if frame is not None and frame.f_globals.get("__name__") == tf.custom_gradient.__module__:
            return True
        frame = frame.f_back if frame is not None else None
    return False


def _hook_collections() -> None:
    original = tf.Graph.get_collection

    def get_collection(self: tf.Graph, name: str, scope: str | None = None) -> Any:
        call = present_call()
        if call is not None and name in _GONE and not _is_asked_for_gradients():
            raise ModelError(f"model_fn asks for TensorFlow 1's collection of {name}, which is gone; {_GONE[name]}")
        answer = None if call is None else _ANSWERS.get(name)
        return original(self, name, scope) if call is None or answer is None else answer(call, scope)

    tf.Graph.get_collection = get_collection


_hook_collections()
