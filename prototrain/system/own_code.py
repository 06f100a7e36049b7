"""Digests of the user's own code and objects, by which a resume sees that they were edited; see `contents`."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from prototrain.system import assigning
from prototrain.system.contents import Code, Values, as_text, attributes_of, digest
from prototrain.system.function_code import found_as, uses_of

_NO_VALUE: tuple[type, ...] = (
    BuiltinFunctionType,
    FunctionType,
    ModuleType,
    classmethod,
    functools.cached_property,
    property,
)
_NO_VALUE += (staticmethod, type)
KEPT = "_made_with"
"""The attribute in which an object has what it was made with."""
_LONGEST = 60  # characters of an attribute that is kept as it is
_notes: dict[int, tuple[weakref.ref[Any], Any]] = {}


def digest_of(thing: Any) -> str:
    """A digest of what a function or a class of the user's own does, or of what any other object was made with."""
    return digest(Values().of(thing))


def code_of(kind: type) -> str:
    """A digest of what the code of a class does, and that of the functions and classes that it names in its module,
    without any values."""
    return digest(Code().of(kind))


def assigns(thing: type | FunctionType) -> bool:
    """Whether the code of a class or a function, or what it names in its module, may change more than its own."""
    return any(assigning.assigns(one) for one in _code_in(thing) if isinstance(one, FunctionType))


def reached(thing: type | FunctionType) -> dict[str, Any]:
    """The values that the code of a class or a function takes from outside of it, by what they are called there, as
    JSON can hold them: globals, default arguments and attributes of classes."""
    found: dict[str, Any] = {}
    for one in _code_in(thing):
        if isinstance(one, type):
            given = {name: value for name, value in vars(one).items() if not name.startswith("__")}
            given = {f"{one.__name__}.{name}": value for name, value in given.items()}
        else:
            defaults = {item.name: item.default for item in inspect.signature(one).parameters.values()}
            given = {f"{one.__name__}({name})": value for name, value in defaults.items()}
        found |= {name: Values().of(value) for name, value in given.items() if not isinstance(value, _NO_VALUE)}
        for name, uses in uses_of(one.__code__).items() if isinstance(one, FunctionType) else ():
            value = found_as(one, name)
            if value is not None and not isinstance(value, _NO_VALUE):
                used = Values().used(value, uses)
                found |= {name if use is None else f"{name}.{use}": item for use, item in used.items()}
    return {name: _short(item) for name, item in sorted(found.items())}


def _code_in(thing: Any) -> list[Any]:
    code = Code()
    code.of(thing)
    return code.met()


def attributes(thing: Any, *, besides: Iterable[str] = ()) -> dict[str, Any]:
    """The attributes of an object by name, as JSON can hold them, with digests of what is long.

    Args:
        thing: has a `__dict__`.
        besides: attributes that do not count.
    """
    kept = attributes_of(thing, besides)
    shown = {name: bare if (bare := name.lstrip("_")) not in kept else name for name in kept}
    return {shown[name]: _short(Values().of(value)) for name, value in kept.items()}


def keep_arguments(made: Any, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Note what an object is made with, for `arguments`; called by the `__new__` of its class.

    Raises:
        TypeError: there are arguments, and the class has no `__init__` that takes them. Python itself says so only
            where there is no `__new__` either.
    """
    if (positional or keywords) and type(made).__init__ is object.__init__:
        raise TypeError(f"{type(made).__name__}() takes no arguments")
    vars(made)[KEPT] = positional, keywords  # whatever its class thinks of setting attributes


def given_to(thing: Any) -> list[Any]:
    """What an object was made with; of a class that does not note it, its attributes."""
    positional, keywords = vars(thing).get(KEPT, ((), {}))
    return [*positional, *keywords.values()] or list(vars(thing).values())


def arguments(thing: Any) -> dict[str, Any]:
    """What an object was made with by name, as JSON can hold it; of a class that does not note it, the attributes that
    have the names of its arguments."""
    signature = inspect.signature(type(thing).__init__)
    if KEPT not in vars(thing):
        names = {kept for name in signature.parameters for kept in (name, f"_{name}")}
        return attributes(thing, besides=vars(thing).keys() - names)
    positional, keywords = vars(thing)[KEPT]
    try:
        given = signature.bind(thing, *positional, **keywords)
    except TypeError:  # of an __init__ that is wrapped in something that takes others
        return {"arguments": digest(Values().of([positional, keywords]))}
    given.apply_defaults()
    return {name: _short(Values().of(value)) for name, value in list(given.arguments.items())[1:]}


def noted(thing: Any, make: Callable[[], Any]) -> Any:
    """What `make` gave when it was first asked of this object: before a run has changed it."""
    key = id(thing)
    if key not in _notes or _notes[key][0]() is not thing:
        try:
            _notes[key] = weakref.ref(thing, lambda _: _notes.pop(key, None)), make()
        except TypeError:  # of a class that has no place for it
            return make()
    return _notes[key][1]


def _short(value: Any) -> Any:
    return value if len(as_text(value)) <= _LONGEST else digest(value)
