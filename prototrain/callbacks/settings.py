"""What callbacks were made with, as far as training depends on it, so that a change of it can be named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.private_api.of_keras import CALLBACK_SCRATCH
from prototrain.system.own_code import attributes, code_of, is_own

_NOTED = "_prototrain_settings"  # with the object itself, which a run changes, and a second run is given again
_OF_CALLBACK = {_NOTED, "state_key", "trainer"}
_OF_PROXY = {_NOTED, "at_end", "callback", "chief_only", "priority", "state_key"}
# Keras's own that change what is trained.
_SETTERS = (
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
)


def callback_settings(labels: Mapping[Callback, str], state_keys: Mapping[str, Callback]) -> dict[str, Any]:
    """What counts of the callbacks of a run, as JSON can hold it, by label: of those that change what is trained the
    attributes, of the user's own the code.

    Asked before they are set up, when they are as they were made.

    Args:
        labels: of the callbacks.
        state_keys: those that have a state, by its name in a checkpoint; it is noted as "state".
    """
    keys = {callback: key for key, callback in state_keys.items()}
    found = {}
    for callback, label in labels.items():
        settings = _settings(callback)
        if settings:
            found[label] = settings | ({"state": keys[callback]} if callback in keys else {})
    return found


def _settings(callback: Callback) -> dict[str, Any]:
    if isinstance(callback, ProxyCallback):
        inner = _settings(callback.callback)
        if inner.keys() <= {"code"}:
            return inner
        return {**inner, "when": [inner.get("when"), attributes(callback, besides=_OF_PROXY)]}
    of_keras = getattr(callback, "callback", None)
    if isinstance(of_keras, keras.callbacks.Callback):
        changes = getattr(of_keras, "changes_training", None)
        if changes is None and isinstance(of_keras, _SETTERS) and not is_own(type(of_keras)):
            changes = True
        return _noted(of_keras, changes, {_NOTED, *CALLBACK_SCRATCH})
    return _noted(callback, callback.changes_training, _OF_CALLBACK)


def _noted(thing: Any, changes_training: bool | None, besides: set[str]) -> dict[str, Any]:
    if _NOTED not in vars(thing):
        found: dict[str, Any] = {}
        if changes_training:
            found = attributes(thing, besides=besides)
        elif changes_training is None and (code := code_of(thing, besides=besides)) is not None:
            found = {"code": code}
        vars(thing)[_NOTED] = found
    noted: dict[str, Any] = vars(thing)[_NOTED]
    return noted
