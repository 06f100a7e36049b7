"""Digests of the user's own code and objects, by which a resume sees that they were edited; see `contents`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prototrain.system.contents import NOTED, Code, Values, as_text, attributes_of, digest

_LONGEST = 60  # characters of an attribute that is kept as it is


def digest_of(thing: Any) -> str:
    """A digest of what a function or a class of the user's own does, or of what any other object was made with."""
    return digest(Values().of(thing))


def code_of(thing: Any, *, besides: Iterable[str] = ()) -> str | None:
    """A digest of what an object's class and the functions that it was given do, without any values; None if none of
    it is the user's own.

    Args:
        thing: has a `__dict__`.
        besides: attributes that do not count.
    """
    found = Code().within([type(thing), *attributes_of(thing, besides).values()])
    return None if found is None else digest(found)


def attributes(thing: Any, *, besides: Iterable[str] = ()) -> dict[str, Any]:
    """The attributes of an object by name, as JSON can hold them, with digests of what is long.

    Args:
        thing: has a `__dict__`.
        besides: attributes that do not count.
    """
    values, kept = Values(), attributes_of(thing, besides)
    shown = {name: bare if (bare := name.lstrip("_")) not in kept else name for name in kept}
    return {shown[name]: _short(values.of(value)) for name, value in kept.items()}


def noted(thing: Any, make: Callable[[], Any]) -> Any:
    """What `make` gave when it was first asked of this object: before a run has changed it."""
    kept = getattr(thing, "__dict__", None)
    if type(kept) is not dict:
        return make()
    if NOTED not in kept or kept[NOTED][0] != id(thing):  # a copy of another object has its note, too
        kept[NOTED] = id(thing), make()
    return kept[NOTED][1]


def _short(value: Any) -> Any:
    return value if len(as_text(value)) <= _LONGEST else digest(value)
