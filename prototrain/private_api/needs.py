"""Whether the private names that a function uses are there, and what becomes of it if they are not."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import keras
import tensorflow as tf

_F = TypeVar("_F", bound=Callable[..., Any])


class Need(NamedTuple):
    """What a function uses.

    Attributes:
        names: of what is private, such as ``module:Class.attribute``.
        without: what is not done where they are missing, for the user.
    """

    names: tuple[str, ...]
    without: str


NEEDS: dict[str, Need] = {}
"""By the name of the function."""

missing: dict[str, list[str]] = {}
"""For each function that was asked for so far, which of its names are not there."""


def needs(*names: str, without: str, instead: Callable[..., Any]) -> Callable[[_F], _F]:
    """Let a function be called only where the private names that it uses are there.

    Args:
        names: ``module:Class.attribute``; an attribute may also be one that the class's methods give to its objects.
        without: what a run without it does not do, or does otherwise, in words.
        instead: is called in its place.
    """

    def decorate(function: _F) -> _F:
        name = function.__name__
        NEEDS[name] = Need(names, without)

        @functools.wraps(function)
        def ask(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if has(name) else instead(*args, **kwargs)

        return cast(_F, ask)

    return decorate


def has(name: str) -> bool:
    """Whether all that a function of this package uses is there."""
    if name not in missing:
        missing[name] = [each for each in NEEDS[name].names if not _is_there(each)]
    return not missing[name]


def lacking() -> list[str]:
    """A line about each function that has to do without."""
    versions = f"TensorFlow {tf.__version__} with Keras {keras.__version__}"
    return [
        f"WARNING: {versions} has no {missing[name][0].rpartition(':')[2]}: {NEEDS[name].without}"
        for name in NEEDS
        if not has(name)
    ]


def _is_there(name: str) -> bool:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return False
    for part in path.split("."):
        if not hasattr(found, part):
            return inspect.isclass(found) and _is_given_to_objects(found, part)
        found = getattr(found, part)
    return True


def _is_given_to_objects(kind: type, attribute: str) -> bool:
    """Whether a class's text names an attribute of its objects. To make an object and look would leave traces."""
    named = re.compile(rf"self\.{attribute}\b")
    try:
        return any(named.search(inspect.getsource(each)) for each in kind.__mro__ if each is not object)
    except (OSError, TypeError):  # only its compiled form is installed
        return True
