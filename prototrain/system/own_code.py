"""Digests of the user's own code and objects, by which a resume sees that they were edited; see `contents`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from prototrain.system.contents import Code, Values, as_text, attributes_of, digest

_LONGEST = 60  # characters of an attribute that is kept as it is
_notes: dict[int, tuple[weakref.ref[Any], Any]] = {}


def digest_of(thing: Any) -> str:
    """A digest of what a function or a class of the user's own does, or of what any other object was made with."""
    return digest(Values().of(thing))


def code_of(kind: type) -> str:
    """A digest of what the code of a class does, and that of the functions and classes that it names in its module,
    without any values."""
    return digest(Code().of(kind))


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
