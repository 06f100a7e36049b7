"""Digests of the user's own code and objects, by which a resume sees that they were edited; see `contents`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from prototrain.system.attribute_uses import ONLY_FILL
from prototrain.system.contents import Code, Values, as_text, digest
from prototrain.system.function_code import found_as, uses_of
from prototrain.system.late_imports import late_imports
from prototrain.system.objects import attributes_of, settings_of
from prototrain.system.source_code import OF_CODE

_NO_VALUE: tuple[type, ...] = (
    BuiltinFunctionType,
    FunctionType,
    ModuleType,
    classmethod,
    functools.cached_property,
    property,
)
_NO_VALUE += (staticmethod, type)
_LONGEST = 60  # characters of an attribute that is kept as it is
_notes: dict[int, tuple[weakref.ref[Any], Any]] = {}


def digest_of(thing: Any) -> str:
    """A digest of what a function or a class of the user's own does, or of what any other object was made with."""
    return digest(Values().of(thing))


def code_of(kind: type) -> str:
    """A digest of what the code of a class does, and that of the functions and classes that it names in its module,
    without any values."""
    return OF_CODE + digest(Code().of(kind))


def reached(thing: type | FunctionType) -> dict[str, Any]:
    """The values that the code of a class or a function takes from outside of it, by what they are called there, as
    JSON can hold them: globals, default arguments, attributes of classes and modules that it imports, but for what it
    calls `not_compared`."""
    found: dict[str, Any] = {}
    left_out = {"changes_training", "not_compared", *getattr(thing, "not_compared", ())}
    code = Code()
    code.of(thing)
    for one in code.met():
        if isinstance(one, type):
            given = {name: value for name, value in vars(one).items() if not name.startswith("__")}
            given = {f"{one.__name__}.{name}": value for name, value in given.items() if name not in left_out}
        else:
            given = {f"{one.__name__}({name})": value for name, value in _defaults(one).items()}
        found |= {name: Values().of(value) for name, value in given.items() if not isinstance(value, _NO_VALUE)}
        for name, uses in uses_of(one.__code__).items() if isinstance(one, FunctionType) else ():
            value = found_as(one, name)
            is_module = isinstance(value, ModuleType)
            if value is None or name in left_out or (isinstance(value, _NO_VALUE) and not is_module):
                continue
            used = Values().used(value, uses)
            if not (is_module and None in used):
                found |= {name if use is None else f"{name}.{use}": item for use, item in used.items()}
    modules = late_imports(one for one in code.met() if isinstance(one, FunctionType))
    found |= {f"the module {name}": digest for name, digest in modules.items()}
    return {name: _short(item) for name, item in sorted(found.items())}


def names_in(thing: Any) -> set[str]:
    """The names that the code of a function or a class of the user's own, or what is made of such, has in it."""
    bodies = [function.__code__ for function in functions_in(thing)]
    found: set[str] = set()
    while bodies:
        body = bodies.pop()
        found.update(body.co_names)
        bodies += [constant for constant in body.co_consts if isinstance(constant, CodeType)]
    return found


def functions_in(thing: Any) -> list[FunctionType]:
    """The functions of the user's own that a function or a class is made of or names, or what is made of such."""
    code = Code(in_containers=True)
    code.of(thing)
    return [one for one in code.met() if isinstance(one, FunctionType)]


def values_around(thing: Any) -> Iterator[tuple[str, str, Any]]:
    """The values that the user's own code in a thing takes from outside of it: globals, variables of functions around
    it, defaults, attributes of functions, classes and modules; but for lists and dicts that it only fills.

    Returns:
        whose each is, what it is called there, and the value.
    """
    code = Code(in_containers=True)
    code.of(thing)
    for one in code.met():
        if isinstance(one, type):
            yield from ((one.__qualname__, name, item) for name, item in vars(one).items() if not name.startswith("__"))
        elif isinstance(one, FunctionType):
            yield from ((one.__qualname__, name, item) for name, item in {**_defaults(one), **vars(one)}.items())
            for name, uses in uses_of(one.__code__).items():
                value = found_as(one, name)
                kept = settings_of(value) if isinstance(value, ModuleType) else {}
                yield from ((name, use, kept[use]) for use in uses if use is not None and use in kept)
                if value is not None and not isinstance(value, ModuleType) and not uses <= ONLY_FILL:
                    yield one.__qualname__, name, value


def _defaults(function: FunctionType) -> dict[str, Any]:
    """The default arguments of a function by name, of itself and not of what it wraps."""
    code = function.__code__
    names, values = code.co_varnames[: code.co_argcount], function.__defaults__ or ()
    return dict(zip(names[len(names) - len(values) :], values, strict=True)) | (function.__kwdefaults__ or {})


def attributes(thing: Any, *, besides: Iterable[str] = ()) -> dict[str, Any]:
    """The attributes of an object by name, as JSON can hold them, with digests of what is long.

    Args:
        thing: has a `__dict__`.
        besides: attributes that do not count.
    """
    kept = attributes_of(thing, besides)
    shown = {name: bare if (bare := name.lstrip("_")) not in kept else name for name in kept}
    return {shown[name]: _short(Values().of(value)) for name, value in kept.items()}


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
