"""Callbacks inside of others: what lies at the core, and what decides when it runs."""

from __future__ import annotations

import inspect
from typing import Any

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.callbacks.trigger import PeriodicTrigger


def innermost(callback: Callback) -> Callback:
    """The callback behind any number of proxies."""
    while isinstance(callback, ProxyCallback):
        callback = callback.callback
    return callback


def user_object(callback: Callback) -> Any:
    """What the user has put in the list, behind any number of proxies: the callback, or the one of Keras it calls."""
    inner = innermost(callback)
    return inner.wraps or inner


def periodic_trigger(callback: Callback) -> PeriodicTrigger | None:
    """The periodic trigger among a callback's proxies."""
    while isinstance(callback, ProxyCallback) and not isinstance(callback, PeriodicTrigger):
        callback = callback.callback
    return callback if isinstance(callback, PeriodicTrigger) else None


def runs_each_step(callback: Callback) -> bool:
    """Whether it runs after every single step."""
    while isinstance(callback, ProxyCallback):
        if isinstance(callback, PeriodicTrigger):
            return callback.every_k_steps == 1
        if type(callback).next_step is not ProxyCallback.next_step:
            return False  # has a schedule of its own
        callback = callback.callback
    return callback.overrides("trigger_step") and not callback.overrides("next_step")


def runs_code_of_user(callback: Callback) -> bool:
    """Whether a callback's class, or a function that it was given, comes from elsewhere than prototrain and Keras."""
    thing = user_object(callback)
    given = list(vars(thing).values())
    given += [each for value in given if isinstance(value, dict) for each in value.values()]
    return any(map(_is_foreign, [type(thing), *filter(inspect.isroutine, given)]))


def _is_foreign(code: Any) -> bool:
    root = (getattr(code, "__module__", None) or "builtins").partition(".")[0]
    return root not in ("builtins", "keras", "prototrain", "time")
