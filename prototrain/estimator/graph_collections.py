"""What a `model_fn` asks TensorFlow 1's graph collections for, answered while one is called.

There are no collections in TensorFlow 2: these functions would give nothing, and a weight decay that is written with
them would be 0 without a word.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.model.build_call import BuildCall
from prototrain.model.keras_hooks import present_call

_V1 = tf.compat.v1
_KEYS = _V1.GraphKeys
_NO_LOSSES = "the losses of a model_fn are in no collection: add them up, and give the sum to EstimatorSpec"
_NO_STEP = "give a learning rate that depends on the step to OptimizerSpec(optimizer, learning_rate=lambda step: ...)"
_GONE = {
    "losses.get_losses": _NO_LOSSES,
    "losses.get_total_loss": _NO_LOSSES,
    "train.get_global_step": _NO_STEP,
    "train.get_or_create_global_step": _NO_STEP,
}


def _trainable_variables(call: BuildCall, scope: str | None = None) -> list[Any]:
    return [variable for variable in call.trainable_variables() if scope is None or re.match(scope, variable.name)]


def _regularization_losses(call: BuildCall, scope: str | None = None) -> list[Any]:
    if scope is not None:
        raise ModelError("model_fn asks for the regularization losses of a scope, which are not known by scopes here")
    return call.take_losses()


def _regularization_loss(call: BuildCall, scope: str | None = None, name: str | None = None) -> Any:
    losses = _regularization_losses(call, scope)
    return tf.add_n([tf.cast(loss, tf.float32) for loss in losses]) if losses else tf.constant(0.0)


def _collection(call: BuildCall, key: str, scope: str | None = None) -> list[Any]:
    if key == _KEYS.TRAINABLE_VARIABLES:
        return _trainable_variables(call, scope)
    if key == _KEYS.REGULARIZATION_LOSSES:
        return _regularization_losses(call, scope)
    if key == _KEYS.UPDATE_OPS:
        return []  # moving averages are updated where they are computed
    raise ModelError(f"model_fn asks for the collection {key!r}; there are none in TensorFlow 2")


def _answer(module: Any, name: str, answer: Callable[..., Any]) -> None:
    original = getattr(module, name)

    @functools.wraps(original)
    def asked(*args: Any, **kwargs: Any) -> Any:
        call = present_call()
        return original(*args, **kwargs) if call is None else answer(call, *args, **kwargs)

    setattr(module, name, asked)


def _refuse(path: str, instead: str) -> None:
    def refuse(call: BuildCall, *args: Any, **kwargs: Any) -> Any:
        raise ModelError(f"model_fn uses tf.{path}(), which is gone; {instead}")

    module, name = path.split(".")
    _answer(getattr(_V1, module), name, refuse)


def _hook_collections() -> None:
    _answer(_V1, "trainable_variables", _trainable_variables)
    _answer(_V1, "get_collection", _collection)
    _answer(_V1.losses, "get_regularization_losses", _regularization_losses)
    _answer(_V1.losses, "get_regularization_loss", _regularization_loss)
    for path, instead in _GONE.items():
        _refuse(path, instead)


_hook_collections()
