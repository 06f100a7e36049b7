"""What values, objects and code hold, described the same in every process and wherever a file lies.

A function counts with all that it reaches: its defaults, what it closes over, and the globals of its module that it
names. What somebody has installed counts by its name, since versions are compared elsewhere. Nothing here may cost a
run: what cannot be looked into is "not known".
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import time
from collections import deque
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from uuid import UUID

import numpy as np
import psutil
import xxhash

from prototrain.system.attribute_uses import FILLED
from prototrain.system.function_code import done_by, found_as, uses_of
from prototrain.system.objects import (
    attributes_of,
    config_of,
    is_own,
    is_plain,
    said_of,
    settings_of,
    simple_attributes,
)

_WRAPPED: tuple[type, ...] = (MethodType, classmethod, staticmethod, property)
_WRAPPED += (functools.cached_property, functools.partial, functools.partialmethod, type(functools.cache(len)))
_MOST = 20_000  # values that are looked into, and members of each of them
_DEEPEST = 60  # of them in each other
_FAR = 366 * 24 * 3600.0  # seconds ahead that an end may lie
_IS_UUID = re.compile(r"[0-9a-f]{8}(-?)[0-9a-f]{4}\1[14][0-9a-f]{3}\1[89ab][0-9a-f]{3}\1[0-9a-f]{12}")  # 1 or 4
_TENSORS = {"EagerTensor", "ResourceVariable", "Variable"}  # of TensorFlow and Keras, which may not be imported
_PLACE_OR_TIME = "a place or a time"
# When this process has begun, by the clock of `time.time`, and by that of `time.perf_counter` and `time.monotonic`.
_STARTED: float = psutil.Process().create_time()
_BEGAN = time.perf_counter() - (time.time() - _STARTED)
LARGE = 64 * 2**20
"""The bytes of an array from which on it has a quicker hash."""


def is_own_code(value: Any) -> bool:
    """Whether a value is, or holds, code of the user's own: a function, a class or an object of one, and what is made
    of such things, like a `functools.partial` or a list."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
    return (
        is_own(type(value))
        or Code(in_containers=True).of(value) is not None
        or any(is_own(type(item)) for item in list(inner)[:_MOST])
    )


class _Contents:
    """Describes values as JSON can hold them; objects, functions and classes of the user's once each."""

    unknown: Any = "not known"

    def __init__(self) -> None:
        self._met: dict[int, Any] = {}  # with the things themselves, or another one could get the same id
        self._open: set[int] = set()  # what is being described
        self._number = 0

    def of(self, value: Any) -> Any:
        """What a value is, or `unknown`."""
        self._number += 1
        if id(value) in self._open or self._number > _MOST or len(self._open) > _DEEPEST:
            return self.unknown
        self._open.add(id(value))
        try:
            return self.describe(value)
        except Exception:  # whatever an object of the user's own raises that is not made to be looked into
            return self.unknown
        finally:
            self._open.discard(id(value))

    def describe(self, value: Any) -> Any:
        if isinstance(value, _WRAPPED):
            return self.parts(_parts_of(value))
        if hasattr(type(value), "python_function"):  # a `tf.function`
            return self.of(value.python_function)
        if isinstance(value, (ModuleType, BuiltinFunctionType, np.ufunc)):
            return self.name(value.__name__)
        is_code = isinstance(value, (FunctionType, type))
        if id(value) in self._met or (is_code and not is_own(value)):
            return self.name(_name(value if is_code else type(value)))
        self._met[id(value)] = value
        if isinstance(value, FunctionType):
            return self.of_function(value)
        return self._of_class(value) if isinstance(value, type) else self.of_object(value)

    def _of_class(self, kind: type) -> Any:
        members = [
            [name, self.of(member)]
            for name, member in sorted(vars(kind).items())
            if not name.startswith("__") or isinstance(member, (FunctionType, staticmethod, classmethod))
        ]
        return ["class", members, list(map(self.of, kind.__bases__))]

    def parts(self, values: Iterable[Any]) -> Any:
        raise NotImplementedError

    def name(self, name: str) -> Any:
        raise NotImplementedError

    def of_function(self, function: FunctionType) -> Any:
        raise NotImplementedError

    def of_object(self, value: Any) -> Any:
        raise NotImplementedError


class Values(_Contents):
    """Describes all that values are made of."""

    def describe(self, value: Any) -> Any:
        if is_place_or_time(value):
            return _PLACE_OR_TIME
        if isinstance(value, (Path, date)):
            return f"{type(value).__name__} {value}"
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, (int, float)):
            return value if math.isfinite(value) else repr(value)
        if isinstance(value, (bytes, complex, np.generic, range, Decimal)):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, re.Pattern):
            return f"pattern {value.pattern!r} {value.flags}"
        if isinstance(value, np.ndarray):
            return _of_array(value)
        if type(value).__name__ in _TENSORS and hasattr(value, "numpy"):
            kind = str(getattr(value.dtype, "name", value.dtype))
            return kind if kind in ("resource", "variant") else _of_array(np.asarray(value))
        if isinstance(value, dict):
            pairs = [(self.of(key), self.of(item)) for key, item in list(value.items())[:_MOST]]
            return dict(pairs) if all(type(key) is str for key, _ in pairs) else [*pairs, len(value)]
        if isinstance(value, (list, tuple, deque)):
            return [*map(self.of, list(value)[:_MOST]), *[len(value)] * (len(value) > _MOST)]
        if isinstance(value, (set, frozenset)):
            return self._of_set(value)
        return super().describe(value)

    def parts(self, values: Iterable[Any]) -> Any:
        return list(map(self.of, values))

    def name(self, name: str) -> Any:
        return name

    def of_function(self, function: FunctionType) -> Any:
        reached = [self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        for name, uses in sorted(uses_of(function.__code__).items()):
            used = self.used(found_as(function, name), uses)
            reached.append([name, *(item if use is None else [use, item] for use, item in used.items())])
        return ["function", done_by(function.__code__), reached]

    def _of_set(self, value: Any) -> Any:
        """Each member by itself, since they come in any order; all together if that comes to an end."""
        found = []
        for item in list(value)[:_MOST]:
            inner = type(self)()
            inner._open, inner._number = self._open, self._number
            found.append(digest(inner.of(item)))
            self._number = inner._number
        return sorted(found) if self._number <= _MOST else self.unknown

    def used(self, value: Any, uses: set[str | None]) -> dict[str | None, Any]:
        """What a function uses of a value: some attributes or items of it, or all (None)."""
        if isinstance(value, (dict, list, set, deque)) and uses <= FILLED:
            return {}  # what a run fills, not what it is made with
        kept = settings_of(value) or simple_attributes(value, uses)
        if not all(use in kept for use in uses):
            return {None: self.of(value)}
        return {use: self.of(kept[use]) for use in sorted(map(str, uses))}

    def of_object(self, value: Any) -> Any:
        kind = type(value)
        described = [_name(kind), self.of(kind)]
        # What a framework's object keeps is the framework's own, and changes as it likes.
        config = None if is_plain(kind) or not hasattr(kind, "from_config") else config_of(value)
        # One of the user's own that does not say what it was made with has the empty config of its base.
        if not config and (is_plain(kind) or (is_own(kind) and hasattr(kind, "from_config"))):
            config = attributes_of(value, ())
        elif config is None:
            config = said_of(value)
        return [*described, self.of(config)]


class Code(_Contents):
    """Describes the user's own functions and classes alone; None stands for what is none.

    Args:
        in_containers: whether those that lists and dicts hold count.
    """

    unknown = None

    def __init__(self, *, in_containers: bool = False) -> None:
        super().__init__()
        self._in_containers = in_containers

    def describe(self, value: Any) -> Any:
        if self._in_containers and isinstance(value, (dict, list, tuple, set)):
            return self.parts(list(value.values() if isinstance(value, dict) else value)[:_MOST])
        is_code = isinstance(value, (*_WRAPPED, FunctionType, type)) or hasattr(type(value), "python_function")
        return super().describe(value) if is_code else None

    def parts(self, values: Iterable[Any]) -> Any:
        return [part for part in map(self.of, values) if part is not None] or None

    def name(self, name: str) -> Any:
        return None

    def of_function(self, function: FunctionType) -> Any:
        named = [found_as(function, name) for name in sorted(uses_of(function.__code__))]
        return ["function", done_by(function.__code__), self.parts(named)]

    def of_object(self, value: Any) -> Any:
        return None

    def met(self) -> list[Any]:
        """The functions and classes that have been described."""
        return list(self._met.values())


def _parts_of(value: Any) -> list[Any]:
    """What a function is wrapped up with, by what stands for it in a class or is called in place of it."""
    names = ("__self__", "__func__", "func", "args", "keywords", "fget", "fset", "__wrapped__")
    return [getattr(value, name, None) for name in names]


def _of_array(value: np.ndarray[Any, Any]) -> list[Any]:
    """The hash of a large one is quicker; what Python objects it holds is not known."""
    found = None
    if not value.dtype.hasobject:
        found = large_digest(value) if value.nbytes > LARGE else sha256(value.tobytes()).hexdigest()
    return [str(value.dtype), list(value.shape), found]


def large_digest(array: np.ndarray[Any, Any]) -> str:
    """A digest of an array of numbers, of at least one axis, in a tenth of a second for each gigabyte."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array).view(np.uint8).data)


def is_place_or_time(value: Any) -> bool:
    """Whether a value says only where something lies, when in this process it was made, or that it is this one."""
    if isinstance(value, (str, Path)):
        is_place = _is_place(value) if isinstance(value, str) else value.is_absolute()
        return is_place or _IS_UUID.fullmatch(str(value)) is not None
    if isinstance(value, UUID):
        return True
    if isinstance(value, datetime):
        value = value.timestamp()
    elif isinstance(value, date):
        return bool(value == date.today())
    if not isinstance(value, float) or value.is_integer():
        return False
    return _BEGAN <= value <= time.perf_counter() or _STARTED <= value <= time.time() + _FAR


@functools.lru_cache
def _is_place(text: str) -> bool:
    """Whether a text is an absolute path, and not the end of a name as in `"/kernel"`."""
    return os.path.isabs(text) and os.path.exists(os.path.join(os.sep, Path(text).parts[1] if text.strip("/") else ""))


def _name(thing: Any) -> str:
    """What a class or function is called; of the user's own without its module, which may be renamed."""
    qualified = str(getattr(thing, "__qualname__", ""))
    return qualified if is_own(thing) else f"{getattr(thing, '__module__', '')}.{qualified}"


def digest(value: Any) -> str:
    """A digest of what a value was described as."""
    return sha256(as_text(value).encode()).hexdigest()[:12]


def as_text(value: Any) -> str:
    """What a value was described as, in one line."""
    return json.dumps(value, sort_keys=True)
