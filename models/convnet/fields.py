"""Checks of config values, with their descriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prototrain.config.schema import show
from prototrain.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Field:
    """One value.

    Attributes:
        expected: the accepted values in words.
        accepts: whether a value is one of them.
        default: what is taken where none is given.
        required: whether one must be given.
    """

    expected: str
    accepts: Callable[[Any], bool]
    default: Any = None
    required: bool = True

    def check(self, place: str, value: Any) -> Any:
        """Return a value that is accepted.

        Raises:
            ConfigError: it is not; the message names its place.
        """
        if not self.accepts(value):
            raise ConfigError(f"{place}: expected {self.expected}, got {show(value)}")
        return value


def integer() -> Field:
    """A whole number from 1."""
    return Field(expected="an int >= 1", accepts=_is_integer)


def pair() -> Field:
    """Two of them."""
    return Field(expected="[height, width]", accepts=_is_pair)


def size(*, default: Any = None, required: bool = True) -> Field:
    """The size of a window or of a stride."""
    return Field(
        expected="an int >= 1 or [height, width]",
        accepts=lambda value: _is_integer(value) or _is_pair(value),
        default=default,
        required=required,
    )


def share(*, default: float | None = None) -> Field:
    """A number from 0 to below 1."""
    return Field(
        expected="a number from 0 to below 1",
        accepts=lambda value: type(value) in (int, float) and 0 <= value < 1,
        default=default,
        required=default is None,
    )


def choice(*known: Any) -> Field:
    """One of some values; the first is the default."""
    words = {None: "null", True: "true", False: "false"}
    return Field(
        expected=f"one of {', '.join(words.get(value, value) for value in known)}",
        accepts=lambda value: value in known and (type(value) is bool) == (type(known[0]) is bool),
        default=known[0],
        required=False,
    )


def _is_integer(value: Any) -> bool:
    return type(value) is int and value >= 1  # exactly: a bool is an int to Python


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_integer, value))
