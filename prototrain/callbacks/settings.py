"""What callbacks were made with, as far as training depends on it, so that a change of it can be named."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

import keras

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.callbacks.proxies import innermost
from prototrain.callbacks.trigger import PeriodicTrigger
from prototrain.experiment.provenance import CHANGES_TRAINING, STATE
from prototrain.private_api.of_keras import CALLBACK_SCRATCH
from prototrain.system.contents import is_own
from prototrain.system.own_code import (
    KEPT,
    arguments,
    assigns,
    attributes,
    code_of,
    digest_of,
    given_to,
    noted,
    reached,
)

_OF_RUN = {"_due", "_enabled", "at_end", "callback", "chief_only", "priority", "state_key", "trainer"}
_OF_RUN |= {KEPT, "_verbose", "verbose"}
# Keras's own that change what is trained.
_SETTERS = (
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
)


def callback_settings(labels: Mapping[Callback, str], state_keys: Mapping[str, Callback]) -> dict[str, Any]:
    """What counts of the callbacks of a run, as JSON can hold it, by label: of those that change what is trained the
    attributes, of the user's own the code, and if that may change what is trained its arguments and what it names.

    Asked before they are set up, when they are as they were made.

    Args:
        labels: of the callbacks.
        state_keys: those that have a state, by its name in a checkpoint.
    """
    keys = {callback: key for key, callback in state_keys.items()}
    found = {}
    for callback, label in labels.items():
        settings = _settings(callback)
        if settings:
            found[label] = settings | ({STATE: keys[callback]} if callback in keys else {})
    return found


def _settings(callback: Callback) -> dict[str, Any]:
    inner = innermost(callback)
    thing = inner.wraps or inner
    changes = getattr(thing, "changes_training", None)
    if changes is None and isinstance(thing, _SETTERS):
        changes = True
    found: dict[str, Any] = noted(thing, lambda: _made_with(thing, changes))
    if found.get(CHANGES_TRAINING) and callback is not inner:
        found = {**found, "its interval": _interval(callback)}
    return found


def _made_with(thing: Any, changes_training: bool | None) -> dict[str, Any]:
    if changes_training is False:
        return {}
    kind = type(thing)
    code = {"its code": code_of(kind)} if is_own(kind) else {}
    if changes_training:
        code |= reached(kind) if code else {}
        return {CHANGES_TRAINING: True, **attributes(thing, besides=_OF_RUN | CALLBACK_SCRATCH), **code}
    if code and assigns(kind):
        return {CHANGES_TRAINING: True, **arguments(thing), **reached(kind), **code}
    given = [value for value in given_to(thing) if isinstance(value, FunctionType) and is_own(value)]
    if any(map(assigns, given)):  # a callback that is made of functions
        return {CHANGES_TRAINING: True, "its functions": digest_of(given)}
    return code


def _interval(proxy: Callback) -> Any:
    """When a callback runs, by those around it."""
    found: list[Any] = []
    while isinstance(proxy, ProxyCallback):
        found.append(proxy.schedule if isinstance(proxy, PeriodicTrigger) else attributes(proxy, besides=_OF_RUN))
        proxy = proxy.callback
    return found[0] if len(found) == 1 else found
