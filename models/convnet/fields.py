"""Checks of config values, with their descriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prototrain.config.schema import short_repr
from prototrain.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Field:
    """One value.

    Attributes:
        expected: a description of the accepted values.
        accepts: returns whether a value is accepted.
        default: the default value.
        required: whether there is no default.
    """

    expected: str
    accepts: Callable[[Any], bool]
    default: Any = None
    required: bool = True

    def check(self, place: str, value: Any) -> Any:
        """Return a value if it is accepted.

        Raises:
            ConfigError: it is not accepted.
        """
        if not self.accepts(value):
            raise ConfigError(f"{place}: expected {self.expected}, got {short_repr(value)}")
        return value


def integer() -> Field:
    """A positive whole number."""
    return Field(expected="an int >= 1", accepts=_is_integer)


def pair() -> Field:
    """Two such values."""
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
    """A number of at least 0 and below 1."""
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
