"""What a `model_fn` asks TensorFlow 1's graph collections for, answered while one is called.

There are no collections in TensorFlow 2: functions such as `tf.compat.v1.trainable_variables` would give nothing, and a
weight decay that is written with them would be 0 without a word. All of them end up in one method of a graph, and that
is where they are answered.
"""

from __future__ import annotations

import re
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
    **dict.fromkeys((_KEYS.MODEL_VARIABLES, _KEYS.WEIGHTS, _KEYS.BIASES), _NO_VARIABLES),
    _KEYS.MOVING_AVERAGE_VARIABLES: _NO_VARIABLES,
}


def _answer(call: BuildCall, name: str, scope: str | None) -> list[Any] | None:
    """What a collection would have; None for one that is not answered."""
    if name in _GONE:
        raise ModelError(f"model_fn asks for TensorFlow 1's collection of {name}, which is gone; {_GONE[name]}")
    if name == _KEYS.REGULARIZATION_LOSSES:
        if scope is not None:
            raise ModelError("model_fn asks for the regularization losses of a scope, which are not known by scopes")
        return [tf.cast(loss, tf.float32) for loss in call.take_losses()]
    if name not in (_KEYS.TRAINABLE_VARIABLES, _KEYS.GLOBAL_VARIABLES):  # tf.custom_gradient asks for the latter
        return None
    variables = call.trainable_variables()
    return [variable for variable in variables if scope is None or re.match(scope, variable.name)]


def _hook_collections() -> None:
    original = tf.Graph.get_collection

    def get_collection(self: tf.Graph, name: str, scope: str | None = None) -> Any:
        call = present_call()
        answer = None if call is None else _answer(call, name, scope)
        return original(self, name, scope) if answer is None else answer

    tf.Graph.get_collection = get_collection


_hook_collections()
