"""The values of a `Config` as JSON data, and back, without running any code that a file names."""

from __future__ import annotations

import inspect
import json
import math
import numbers
import re
import sys
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final

from prototrain.config.schema import REFERENCE, SCHEMA, HasConfig, show
from prototrain.config.values import refuse_constant
from prototrain.errors import ConfigError

FUNCTIONS_KEY: Final = "prototrain.functions"
"""The key of a `config.json` that lists the paths of values which only stand for what they were."""


def encode(value: Any, path: str, marks: list[str]) -> Any:
    """Return `value` as JSON data; append to `marks` the path of each item that only stands for what it was.

    A path is the key, then "/" and an index or name for each level, as in a JSON pointer.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and math.isfinite(value) and float(value) == value:
        return float(value)
    if isinstance(value, (list, tuple)):
        return [encode(item, f"{path}/{index}", marks) for index, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: encode(item, _step(path, name), marks) for name, item in value.items()}
    marks.append(path)
    if isinstance(value, HasConfig) and not isinstance(value, type):
        config = _own_config(value)
        if config is not None:
            return {"class": _class_name(value), "config": encode(config, path, [])}
    return _reference(value) or _source(value) or re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def decode_key(key: str, value: Any, marks: Collection[str]) -> Any:
    """Turn the data that `encode` made of a key's value back into the value; `marks` are the paths that it marked.

    Raises:
        ConfigError: a marked item has no name, or its name is not to be found in an imported module.
    """
    return decode(value, key, {*marks, key} if stands_for_other(key, value) else {*marks})


def decode(value: Any, path: str, marks: Collection[str]) -> Any:
    """Turn data that `encode` made back into the value, see `decode_key`; `path` is where it is."""
    if path in marks:
        return _find(value, path)
    if isinstance(value, list):
        return [decode(item, f"{path}/{index}", marks) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {name: decode(item, _step(path, name), marks) for name, item in value.items()}
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in the file `path`.

    Raises:
        ConfigError: names the file, the line where the JSON is broken, and what is wrong.
    """
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


def read_saved(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read a `config.json`: the values by key, and the paths of those that stand for others."""
    plain = read_object(path)
    marks = plain.pop(FUNCTIONS_KEY, [])
    if not isinstance(marks, list) or not all(isinstance(mark, str) for mark in marks):
        raise ConfigError(f"{path}: {FUNCTIONS_KEY}: expected list[str], got {show(marks)}")
    return plain, marks


def marks_of(key: str, marks: Collection[str]) -> list[str]:
    """The paths among `marks` that are of `key` or of what is inside of its value."""
    return [mark for mark in marks if mark == key or mark.startswith(f"{key}/")]


def stands_for_other(key: str, value: Any) -> bool:
    """Tell whether the saved `value` of a schema key is the name of a function or the description of an object."""
    spec = SCHEMA.get(key)
    if spec is None or spec.type not in ("function", "optimizer"):
        return False
    return isinstance(value, (str, dict)) and value not in spec.choices


def _step(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"


def _class_name(value: object) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _own_config(value: HasConfig) -> dict[str, Any] | None:
    try:
        return value.get_config()
    except NotImplementedError:  # what Keras raises for a class that never defined it
        return None


def _reference(value: Any) -> str | None:
    """Return "module:name" if that finds exactly `value`."""
    reference = f"{getattr(value, '__module__', None)}:{getattr(value, '__qualname__', None)}"
    if not REFERENCE.fullmatch(reference):
        return None
    try:
        found = _find(reference, "")
    except ConfigError:
        return None
    # A class method is another object at each look, but an equal one.
    return reference if found is value or (isinstance(value, MethodType) and found == value) else None


def _find(reference: Any, path: str) -> Any:
    if reference in ("nan", "inf", "-inf"):
        return float(reference)
    if not isinstance(reference, str) or not REFERENCE.fullmatch(reference):
        what = reference.get("class", reference) if isinstance(reference, dict) else reference
        raise ConfigError(f"{path}: {show(what)} cannot be read back, only a function's name can; set {path} again")
    module, _, qualname = reference.partition(":")
    if module not in sys.modules:
        raise ConfigError(f"{path}: {reference!r} is in a module that is not imported; import {module} first")
    found: Any = sys.modules[module]
    try:
        for name in qualname.split("."):
            # The static look-up runs no code: no module's __getattr__, no property.
            owner, found = found, inspect.getattr_static(found, name)
            if isinstance(found, (staticmethod, classmethod)):
                found = found.__get__(None, owner)
    except AttributeError as error:
        raise ConfigError(f"{path}: module {module!r} has no {qualname!r}") from error
    return found


def _source(value: Any) -> str | None:
    """Return the source of a function that has no name to look up, and plain values that it has from around it.

    For a lambda that is the code that it stands in, on one line.
    """
    try:
        text = inspect.getsource(value) if isinstance(value, FunctionType) else None
    except (OSError, SyntaxError):  # typed at a prompt, made by exec, or edited since
        text = None
    if text is None:
        return None
    try:
        around = inspect.getclosurevars(value).nonlocals
    except ValueError:  # one has no value yet
        around = {}
    text = " ".join(text.split()).rstrip(",") if value.__name__ == "<lambda>" else textwrap.dedent(text)
    said = [f"{name} = {item!r}" for name, item in around.items() if isinstance(item, (bool, int, float, str))]
    return f"{text}  # {', '.join(said)}" if said else text
