"""The space of a sweep: a list of values, or a range to sample from, for each key."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from prototrain.config.schema import short_repr
from prototrain.config.values import as_text, read_value, split_values
from prototrain.errors import SweepError

FORMS: Final = "log:1e-5..1e-1, float:0..1, int:16..256 or choice:a|b"
_RANGE: Final = re.compile(r"(log|float|int):(.+?)\.\.(.+)")


@dataclass(frozen=True)
class Dimension:
    """The values of one key: a choice, or a range whose numbers are uniform, for "log" in the logarithm."""

    kind: Literal["choice", "log", "float", "int"]
    values: tuple[Any, ...]  # all choices, as JSON data; for a range the smallest and the largest number

    @property
    def texts(self) -> list[str]:
        """The values as on the command line, where 1, "1" and True are different."""
        return [as_text(value) for value in self.values]

    def __str__(self) -> str:
        return ", ".join(self.texts) if self.kind == "choice" else f"{self.kind}:{self.values[0]}..{self.values[1]}"


Space = dict[str, Dimension]


def parse_space(texts: Iterable[str], *, is_grid: bool) -> dict[str, Any]:
    """Read ``KEY=V1,V2`` texts of a grid, or ``KEY=SPACE`` texts, and return the space for `from_mapping`."""
    found: dict[str, Any] = {}
    for text in texts:
        key, _, rest = text.partition("=")
        if (key := key.strip()) in found:
            raise SweepError(f"{key} is given twice")
        found[key] = _split(key, rest.strip(), ",") if is_grid else rest.strip()
    return found


def from_mapping(space: Mapping[str, Any]) -> Space:
    """Read a dictionary whose values are lists of values, or texts such as those in `FORMS`."""
    for key, value in space.items():
        if not isinstance(value, list | tuple | str):
            raise SweepError(f"{key}: expected a list of values, or a text such as {FORMS}, got {short_repr(value)}")
    return {key: _range(key, value) if isinstance(value, str) else _choice(key, value) for key, value in space.items()}


def as_settings(values: Mapping[str, Any]) -> list[str]:
    """Return config values as `KEY=VALUE` texts for the command line's `-s`."""
    return [f"{key}={as_text(value)}" for key, value in values.items()]


def as_options(settings: Sequence[str]) -> list[str]:
    """Return `KEY=VALUE` texts as arguments of the command line."""
    return [word for setting in settings for word in ("-s", setting)]


def _range(key: str, text: str) -> Dimension:
    if text.startswith("choice:"):
        return _choice(key, _split(key, text.removeprefix("choice:"), "|"))
    match = _RANGE.fullmatch(text)
    if match is None:
        raise SweepError(f"{key}={text}: expected one of {FORMS}")
    kind: Any = match[1]
    low, high = (read_value(end.strip()) for end in match.groups()[1:])
    for end in (low, high):
        wanted = int if kind == "int" else (int, float)
        if not isinstance(end, wanted) or isinstance(end, bool) or not math.isfinite(end):
            raise SweepError(f"{key}={text}: {short_repr(end)} is not {'a whole' if kind == 'int' else 'a'} number")
    if kind == "log" and low <= 0:
        raise SweepError(f"{key}={text}: a logarithmic range must begin above 0")
    if low >= high:
        raise SweepError(f"{key}={text}: the range must end above its beginning")
    return Dimension(kind, (low, high) if kind == "int" else (float(low), float(high)))


def _choice(key: str, values: Iterable[Any]) -> Dimension:
    choice = Dimension("choice", tuple(values))
    try:
        texts = choice.texts
    except TypeError as error:
        raise SweepError(f"{key}: {error}; a function is given as a text, 'module:name'") from error
    if not texts:
        raise SweepError(f"{key} has no values to try")
    return choice


def _split(key: str, text: str, separator: str) -> list[Any]:
    parts = split_values(text, separator) if text else []
    if "" in parts:
        raise SweepError(f"{key}: a value is missing next to {short_repr(separator)}")
    return [read_value(part) for part in parts]
