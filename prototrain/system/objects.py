"""Whose a thing is, and what an object says that it was made with."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any

from prototrain.system.code_paths import is_installed

_SIMPLE = (bool, int, float, str)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
# Modules, besides those of callbacks, whose classes keep nothing in objects that the user has not put there.
_PLAIN = {
    "abc",
    "argparse",
    "builtins",
    "collections",
    "collections.abc",
    "enum",
    "prototrain.callbacks.hyperparameters.hyper_param",
    "prototrain.gradient_processors",
    "prototrain.schedules",
    "types",
    "typing",
}


def is_own(thing: Any) -> bool:
    """Whether a class or a function is the user's own: nobody has installed the module that it is from."""
    name = getattr(thing, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" if file is None else not is_installed(file)


def _is_own_module(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and not is_installed(file)


def attributes_of(thing: Any, besides: Iterable[str]) -> dict[str, Any]:
    """The attributes of an object by name but for some, also where its class has slots for them."""
    left_out = {*besides, *getattr(type(thing), "not_compared", ())}
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()) if name != "__dict__"]
    found: Mapping[str, Any] = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
    found = {**found, **getattr(thing, "__dict__", {})}
    return {name: value for name, value in sorted(found.items()) if name not in left_out}


def said_of(value: Any) -> Any:
    """What an object of an installed class, or of a class that has one as a base, says that it was made with: its
    `repr`, if that does not only say what it is; else the plain values that have been given to it by name."""
    kind = type(value)
    if value is os.environ:  # which is another one in each terminal
        return None
    said = repr(value) if "__repr__" in {name for base in kind.__mro__[:-1] for name in vars(base)} else "<>"
    if not said.startswith("<") and " at 0x" not in said:
        return said
    public = attributes_of(value, ()) if is_own(kind) else {}
    return {name: each for name, each in public.items() if not name.startswith("_") and isinstance(each, _SIMPLE)}


def simple_attributes(value: Any, uses: set[str | None]) -> dict[str, Any]:
    """What an object of an installed class, such as parsed flags, has under some names, if these are plain values."""
    if isinstance(value, (FunctionType, ModuleType, type, *_CONTAINERS)) or None in uses:
        return {}
    try:
        found = {str(use): getattr(value, str(use), None) for use in uses}
    except Exception:  # whatever an object raises that is not made to be looked into
        return {}
    return found if all(isinstance(item, _SIMPLE) for item in found.values()) else {}


def settings_of(value: Any) -> dict[str, Any]:
    """What of a value can be told by a name: the items of a dict, the fields of settings in a class or an object, what
    stands in a module of the user's own."""
    if isinstance(value, dict):
        return value
    if value is os.environ:
        return dict(os.environ)
    if isinstance(value, ModuleType):
        return vars(value) if _is_own_module(value) else {}
    if isinstance(value, tuple):
        return {name: getattr(value, name) for name in getattr(value, "_fields", ())}
    kind = value if isinstance(value, type) else type(value)
    if isinstance(value, FunctionType) or not is_plain(kind):
        return {}
    of_classes = {name: item for base in reversed(kind.__mro__) if is_own(base) for name, item in vars(base).items()}
    fixed = {name: item for name, item in of_classes.items() if not hasattr(item, "__get__")}
    return fixed if isinstance(value, type) else {**fixed, **attributes_of(value, ())}


def is_plain(kind: type) -> bool:
    """Whether objects of a class have only attributes that the user has given to them."""
    return all(is_own(base) or base.__module__ in _PLAIN or _is_of_callbacks(base) for base in kind.__mro__)


def _is_of_callbacks(kind: type) -> bool:
    """Whether a class is a callback of prototrain's or Keras's, or a part of one; before a run has begun they have what
    they were made with."""
    root, *inner = kind.__module__.split(".")
    return root in ("keras", "prototrain") and "callbacks" in inner


def config_of(value: Any) -> Any:
    """What an object of Keras, or like one, says that it was made with; None if it does not."""
    try:
        config = value.get_config()
    except (AttributeError, NotImplementedError, TypeError, ValueError):  # one that cannot tell
        return None
    if not isinstance(config, dict):
        return config
    # What a loss hands on to its function is not in all configs, such as the `delta` of Keras's `Huber`.
    for name, arguments in getattr(value, "__dict__", {}).items():
        if name.endswith("_kwargs") and isinstance(arguments, dict):
            config = {**arguments, **config}
    # A name counts up by process, and the rate of an optimizer is in every checkpoint.
    return {n: item for n, item in config.items() if n != "name" and (n != "learning_rate" or type(item) is not float)}
