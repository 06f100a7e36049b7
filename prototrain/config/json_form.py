"""The conversion of config values to JSON data and back, without running any code that a file names."""

from __future__ import annotations

import inspect
import json
import math
import numbers
import re
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final

from prototrain.config.schema import REFERENCE, SCHEMA, HasConfig, show
from prototrain.config.values import refuse_constant
from prototrain.errors import ConfigError

FUNCTIONS_KEY: Final = "prototrain.functions"
"""The key of a `config.json` that lists the model's own keys whose values JSON cannot hold."""


def encode(value: Any) -> Any:
    """Return `value` as JSON data.

    A function is written as "module:name" if that finds it, else as its source. An object with `get_config` is written
    as its class and config. Other values that JSON cannot hold are written as text, and tuples as lists.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if _is_finite(value):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if _is_mapping(value):
        return {name: encode(item) for name, item in value.items()}
    if isinstance(value, HasConfig) and not isinstance(value, type):
        with suppress(NotImplementedError):  # raised by Keras for a class without get_config
            name = f"{type(value).__module__}:{type(value).__qualname__}"
            return {"class": name, "config": encode(value.get_config())}
    return _reference(value) or _source(value) or re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def is_plain(value: Any) -> bool:
    """Return whether JSON can hold a value, so that `encode` returns an equal value."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    if _is_mapping(value):
        return all(map(is_plain, value.values()))
    return value is None or isinstance(value, (bool, str, numbers.Integral)) or _is_finite(value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value) and float(value) == value


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def decode(key: str, value: Any) -> Any:
    """Return the object whose name was saved, from the modules that are imported."""
    if not isinstance(value, str) or not REFERENCE.fullmatch(value):
        what = value.get("class", value) if isinstance(value, dict) else value
        raise ConfigError(f"{key}: {show(what)} cannot be read back, only a function's name can; set {key} again")
    return _find(value, key)


def stands_for_other(key: str, value: Any) -> bool:
    """Return whether the saved value of a schema key names a function or describes an object."""
    if key not in SCHEMA or SCHEMA[key].type not in ("function", "optimizer"):
        return False
    return isinstance(value, (str, dict)) and value not in SCHEMA[key].choices


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. A `ConfigError` about a malformed file names the line."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}: malformed JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, NaN, a number of 5,000 digits, or far too deep
        raise ConfigError(f"{path}: malformed JSON: {show(str(error))}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {show(content)}")
    return content


def _reference(value: Any) -> str | None:
    """Return "module:name" if a lookup of that finds exactly `value`."""
    reference = f"{getattr(value, '__module__', None)}:{getattr(value, '__qualname__', None)}"
    try:
        found = _find(reference, "") if REFERENCE.fullmatch(reference) else None
    except ConfigError:
        return None
    # Each access to a class method creates a new but equal object.
    is_same = found is value or (isinstance(value, MethodType) and found == value)
    return reference if is_same and value is not None else None


def _find(reference: str, key: str) -> Any:
    module, _, qualname = reference.partition(":")
    if module not in sys.modules:
        raise ConfigError(f"{key}: {reference!r} is in a module that is not imported; import {module} first")
    found: Any = sys.modules[module]
    try:
        for name in qualname.split("."):
            # The static lookup runs no code, such as a module's __getattr__ or a property.
            owner, found = found, inspect.getattr_static(found, name)
            if isinstance(found, (staticmethod, classmethod)):
                found = found.__get__(None, owner)
    except AttributeError as error:
        raise ConfigError(f"{key}: module {module!r} has no {qualname!r}") from error
    return found


def _source(value: Any) -> str | None:
    """Return the source of a function, with the plain values from the enclosing functions. A lambda is on one line."""
    if not isinstance(value, FunctionType):
        return None
    try:
        text = inspect.getsource(value)
        around = inspect.getclosurevars(value).nonlocals
    except (OSError, SyntaxError, ValueError):  # typed at a prompt, created by exec, or edited later
        return None
    text = " ".join(text.split()).rstrip(",") if value.__name__ == "<lambda>" else textwrap.dedent(text)
    said = [f"{name} = {item!r}" for name, item in around.items() if isinstance(item, (bool, int, float, str))]
    return f"{text}  # {', '.join(said)}" if said else text
