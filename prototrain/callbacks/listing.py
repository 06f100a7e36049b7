"""A user's list of callbacks: what may be in it, and what its members are called."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.errors import CallbackError

_TENSORPACK = {
    "_setup_graph": "setup",
    "_before_train": "before_train",
    "_after_train": "after_train",
    "_before_epoch": "before_epoch",
    "_after_epoch": "after_epoch",
    "_before_run": "before_run",
    "_after_run": "after_run",
    "_trigger_step": "trigger_step",
    "_trigger_epoch": "trigger_epoch",
    "_trigger": "trigger",
    "_chief_only": "chief_only",
    "process_scalar": "put_scalar",
}
"""The names of hooks in tensorpack, which nothing calls here, and those of the same hooks here."""


def _check_names(callback: Callback) -> None:
    """Raise a CallbackError if a class has a hook under tensorpack's name and none under its name here."""
    own = [kind for kind in type(callback).__mro__ if not kind.__module__.startswith(("prototrain.", "builtins"))]
    for name, here in _TENSORPACK.items():
        if any(name in vars(kind) for kind in own) and not any(here in vars(kind) for kind in own):
            raise CallbackError(
                f"{callback.name} has {name}, tensorpack's name, which is never used here; call it {here}"
            )
    if isinstance(callback, ProxyCallback):
        _check_names(callback.callback)


def checked(callbacks: Iterable[Callback]) -> list[Callback]:
    """The members of a list of callbacks.

    Raises:
        CallbackError: it is no list, something in it is not a callback, a callback has a hook under tensorpack's name,
            or one is in it twice.
    """
    if isinstance(callbacks, Callback):
        raise CallbackError(f"the callbacks must be a list; write [{callbacks!r}]")
    if not isinstance(callbacks, Iterable):
        raise CallbackError(f"the callbacks must be a list, not {_kind(callbacks)}")
    given = list(callbacks)
    for callback in given:
        if not isinstance(callback, Callback):
            raise CallbackError(f"not a callback: {_not_one(callback)}")
        _check_names(callback)
        if sum(other is callback for other in given) > 1:
            raise CallbackError(f"{callback!r} is in the list twice; make a second one")
    return given


def _not_one(value: Any) -> str:
    """What is in the list, and what to write there."""
    kind = value if isinstance(value, type) else type(value)
    keras = sys.modules.get("keras")
    if keras is not None and issubclass(kind, keras.callbacks.Callback):
        return f"{kind.__name__} is one of Keras; write KerasCallback({kind.__name__}(...))"
    if isinstance(value, type):
        return f"{value.__name__} is a class; write it with parentheses, {value.__name__}(...)"
    if callable(value):
        return f"{value!r} is a function; write CallbackFactory(trigger=...), or a subclass of Callback"
    return f"{value!r}{'; leave out the list around it' if isinstance(value, list | tuple) else ''}"


def own_callbacks(model: Any) -> list[Callback]:
    """What a model's function `callbacks` returns; nothing if it has none.

    Raises:
        CallbackError: it returns something else than a list of callbacks.
    """
    function = getattr(model, "callbacks", None)
    if function is None:
        return []
    if not callable(function):
        raise CallbackError(f"the model's callbacks must be a function that returns a list, not {_kind(function)}")
    found = function()
    if not isinstance(found, Iterable):
        raise CallbackError(
            f"the model's callbacks() must return a list of callbacks, not {_kind(found)}"
            f"{'; return [] for none' if found is None else ''}"
        )
    return checked(found)


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def state_keys(callbacks: list[Callback]) -> dict[str, Callback]:
    """Map state keys to the callbacks that have a state, or were given a key."""
    keys: dict[str, Callback] = {}
    for callback in callbacks:
        if callback.state_key is None and not callback.overrides("state_dict"):
            continue
        key = callback.state_key or callback.name
        if key in keys:
            raise CallbackError(
                f"two callbacks would save their state as {key!r} ({keys[key]!r} and {callback!r}); "
                "give one of them another state_key"
            )
        keys[key] = callback
    return keys


def labels(callbacks: list[Callback]) -> dict[Callback, str]:
    """Name every callback so that the same list gives the same names in another process."""
    seen: Counter[str] = Counter()
    found: dict[Callback, str] = {}
    for callback in callbacks:
        seen[callback.name] += 1
        found[callback] = callback.name if seen[callback.name] == 1 else f"{callback.name} {seen[callback.name]}"
    return found
