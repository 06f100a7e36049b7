"""What code and objects of the user's are, by their contents: the same in every process and wherever a file lies.

A function counts with all that it reaches: its defaults, what it closes over, and the globals of its module that it
names. What somebody has installed counts by its name, since versions are compared elsewhere.
"""

from __future__ import annotations

import dis
import functools
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from prototrain.system.code_paths import is_installed

_MOST = 100_000  # values that are looked into
_LONGEST = 60  # characters of an attribute that is kept as it is
_LOADED = {"LOAD_GLOBAL", "LOAD_NAME"}
# What keeps nothing in its objects that the user has not put there.
_PLAIN = (
    "prototrain.callbacks",
    "prototrain.estimator.hooks",
    "prototrain.gradient_processors",
    "prototrain.schedules",
    "abc",
    "builtins",
    "collections",
    "typing",
)


def is_own(thing: Any) -> bool:
    """Whether a class or a function is the user's own: nobody has installed the module that it is from."""
    name = getattr(thing, "__module__", None) or "builtins"
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return name == "__main__" if file is None else not is_installed(file)


def digest_of(thing: Any) -> str:
    """A digest of what a function or a class of the user's own does, or of what any other object was made with."""
    return _digest(_Contents().of(thing))


def code_of(thing: Any, *, besides: Iterable[str] = ()) -> str | None:
    """A digest of what an object's class and the functions that it was given do, without any values; None if none of
    it is the user's own.

    Args:
        thing: has a `__dict__`.
        besides: attributes that do not count.
    """
    found = _Contents(code_only=True).code_in([type(thing), *_besides(thing, besides).values()])
    return None if found is None else _digest(found)


def attributes(thing: Any, *, besides: Iterable[str] = ()) -> dict[str, Any]:
    """The attributes of an object by name, as JSON can hold them, with digests of what is long; and its "code" if its
    class is the user's own.

    Args:
        thing: has a `__dict__`.
        besides: attributes that do not count.
    """
    contents = _Contents()
    found = {name.lstrip("_"): _short(contents.of(value)) for name, value in _besides(thing, besides).items()}
    return {"code": digest_of(type(thing)), **found} if is_own(type(thing)) else found


def _besides(thing: Any, besides: Iterable[str]) -> dict[str, Any]:
    left_out = set(besides)
    return {name: value for name, value in sorted(vars(thing).items()) if name not in left_out}


def done_by(constant: Any) -> str:
    """What a function's code does, wherever it is written; of its constants the types too, and no order of a set."""
    if isinstance(constant, CodeType):
        numbers = constant.co_flags, constant.co_argcount, constant.co_posonlyargcount, constant.co_kwonlyargcount
        names = constant.co_names, constant.co_varnames, constant.co_freevars, constant.co_cellvars
        return f"({constant.co_code!r} {numbers} {names} {done_by(constant.co_consts)})"
    if isinstance(constant, (tuple, frozenset)):
        parts = map(done_by, constant)
        return f"{type(constant).__name__}({', '.join(sorted(parts) if isinstance(constant, frozenset) else parts)})"
    return f"{type(constant).__name__} {constant!r}"


class _Contents:
    """Describes values as JSON can hold them; objects, functions and classes of the user's once each.

    Args:
        code_only: leave out all values; None stands for what has no code of the user's in it.
    """

    def __init__(self, *, code_only: bool = False) -> None:
        self._code_only = code_only
        self._met: set[int] = set()
        self._open: set[int] = set()  # what is being described
        self._number = 0

    def of(self, value: Any) -> Any:
        self._number += 1
        if id(value) in self._open or self._number > _MOST:
            return "..."
        self._open.add(id(value))
        try:
            return self._code(value) if self._code_only else self._plain(value)
        finally:
            self._open.discard(id(value))

    def _code(self, value: Any) -> Any:
        if isinstance(value, (Mapping, list, tuple)):
            items = value.values() if isinstance(value, Mapping) else value
            # Not other objects, which a list of what has happened is filled with.
            return self.code_in(item for item in items if callable(item) or isinstance(item, (dict, list, tuple)))
        if isinstance(value, (str, bytes, int, float, complex, set, frozenset, np.generic, np.ndarray, Path)):
            return None
        found = self._reached(value)
        return found if isinstance(found, list) else None  # of what is not the user's own there is a name

    def code_in(self, values: Iterable[Any]) -> list[Any] | None:
        """What there is of the user's own code in values, if these are to be left out."""
        return [part for part in map(self.of, values) if part is not None] or None

    def _plain(self, value: Any) -> Any:
        if _is_place_or_time(value):
            return "a place or a time"
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else repr(value)
        if isinstance(value, (bytes, complex, np.generic)):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return [str(value.dtype), list(value.shape), sha256(value.tobytes()).hexdigest()]
        if isinstance(value, Mapping):
            return {str(self.of(key)): self.of(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return list(map(self.of, value))
        if isinstance(value, (set, frozenset)):
            return sorted(json.dumps(self.of(item)) for item in value)
        return self._reached(value)

    def _reached(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return [self.of(part) for part in (value.func, value.args, value.keywords)]
        if isinstance(value, property):
            return [self.of(value.fget), self.of(value.fset)]
        if isinstance(value, (MethodType, staticmethod, classmethod)):
            return self.of(value.__func__)
        if hasattr(type(value), "python_function"):  # a `tf.function`
            return self.of(value.python_function)
        if type(value).__name__ == "EagerTensor":
            return self.of(value.numpy())
        if isinstance(value, (ModuleType, BuiltinFunctionType)):
            return value.__name__
        is_code = isinstance(value, (FunctionType, type))
        if id(value) in self._met or (is_code and not is_own(value)):
            return _name(value if is_code else type(value))
        self._met.add(id(value))
        if isinstance(value, FunctionType):
            return self._of_function(value)
        return self._of_class(value) if isinstance(value, type) else self._of_object(value)

    def _of_function(self, function: FunctionType) -> Any:
        within = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        named = [function.__globals__.get(name) for name in sorted(set(_globals_of(function.__code__)))]
        if self._code_only:
            return ["function", done_by(function.__code__), self.code_in([*within, *named])]
        reached = map(self.of, (function.__defaults__, function.__kwdefaults__, within, named))
        return ["function", done_by(function.__code__), *reached]

    def _of_class(self, kind: type) -> Any:
        members = {
            name: self.of(member)
            for name, member in sorted(vars(kind).items())
            if not name.startswith("__") or isinstance(member, (FunctionType, staticmethod, classmethod))
        }
        return ["class", members, list(map(self.of, kind.__bases__))]

    def _of_object(self, value: Any) -> Any:
        kind = type(value)
        if self._code_only:
            return self.code_in([kind, *getattr(value, "__dict__", {}).values()])
        described = [_name(kind), self.of(kind)]
        is_plain = all(is_own(base) or base.__module__.startswith(_PLAIN) for base in kind.__mro__)
        # What a framework's object keeps is the framework's own, and changes as it likes.
        config = None if is_plain or not hasattr(kind, "from_config") else _config_of(value)
        if config is None and (is_plain or is_own(kind)):
            config = getattr(value, "__dict__", None)
        return [*described, self.of(config)]


def _globals_of(code: CodeType) -> Iterator[str]:
    yield from (str(op.argval) for op in dis.get_instructions(code) if op.opname in _LOADED)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a variable of the enclosing function that has no value yet
        return False
    return True


def _config_of(value: Any) -> Any:
    try:
        return {name: item for name, item in value.get_config().items() if name != "name"}
    except (AttributeError, NotImplementedError, TypeError, ValueError):  # one that cannot tell
        return None


def _is_place_or_time(value: Any) -> bool:
    """Whether a value says only where something lies or when it was made."""
    if isinstance(value, str):
        return os.path.isabs(value)
    if not isinstance(value, float) or value.is_integer() or not 1000 < value < math.inf:
        return isinstance(value, Path)
    return value > 1e9 or any(abs(value - clock()) < 600 for clock in (time.monotonic, time.perf_counter))


def _name(thing: Any) -> str:
    """What a class or function is called; of the user's own without its module, which may be renamed."""
    qualified = str(getattr(thing, "__qualname__", ""))
    return qualified if is_own(thing) else f"{getattr(thing, '__module__', '')}.{qualified}"


def _short(value: Any) -> Any:
    return value if len(json.dumps(value)) <= _LONGEST else _digest(value)


def _digest(value: Any) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()[:12]
