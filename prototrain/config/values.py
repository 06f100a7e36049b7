"""Config values as text: as people write them, and as the JSON data of config.json."""

from __future__ import annotations

import ast
import inspect
import json
import math
import numbers
import operator
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final, NoReturn

from prototrain.config.schema import REFERENCE, HasConfig, is_namespace, short_repr
from prototrain.errors import ConfigError

FUNCTIONS_KEY: Final = "prototrain.functions"
"""The key of a `config.json` that lists the model's own keys whose values JSON cannot hold."""
_WORDS: Final = {"true": True, "false": False, "none": None, "null": None}
_NUMBER: Final = re.compile(r"[+-]?(0|[1-9]\d*|(\d+\.\d*|\.\d+)(e[+-]?\d+)?|\d+e[+-]?\d+)", re.IGNORECASE)


def read_value(text: str) -> Any:
    """Parse the text of one value.

    In addition to JSON, this takes `true`, `false`, `none` and `null` in any case, numbers such as `.25`, `1.` and
    `1E-3`, lists of all these, and Python's lists and dicts. Everything else is text, as is anything in single or
    double quotes.

    >>> [read_value(text) for text in ("False", ".25", "[1, None]", "adam", "'1'")]
    [False, 0.25, [1, None], 'adam', '1']
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        return text
    except ValueError:  # not JSON
        pass
    word = text.strip()
    found = _read_word(word)
    if found is not word:
        return found
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        if word.startswith(("[", "{")) and "\\" not in word and is_plain(literal := ast.literal_eval(word)):
            return literal
    inner = word[1:-1]
    if word == f"'{inner}'" and "'" not in inner:
        return inner
    if word == f"[{inner}]":
        parts = split_values(inner, ",")
        items = [read_value(part) for part in parts]
        if not any(map(operator.eq, items, parts)):  # bare words: a pattern such as [a-z]
            return items
    return text


def _read_word(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) < 400 and _NUMBER.fullmatch(text):
        with suppress(ValueError):
            return _finite(text) if set(".eE") & set(text) else int(text)
    return text


def as_text(value: Any) -> str:
    """Format a value so that `read_value` returns it again: an unambiguous text as it is, other values as JSON."""
    plain = isinstance(value, str) and read_value(value) == value
    return value if plain else json.dumps(value, ensure_ascii=False)


def split_values(text: str, separator: str) -> list[str]:
    """Split the text of several values at a separator outside of quotes and brackets.

    Quotes and brackets count only if a value begins with one. For example, `adam,[1,2]` gives `adam` and `[1,2]`.
    """
    parts, start, depth, quote = [], 0, 0, ""
    for index, letter in enumerate(text):
        opens = depth or not text[start:index].strip()
        if quote:
            quote = "" if letter == quote and text[index - 1] != "\\" else quote
        elif letter in "\"'" and opens:
            quote = letter
        elif letter in "[{" and opens:
            depth += 1
        elif letter in "]}" and depth:
            depth -= 1
        elif letter == separator and not depth:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]


class FileText(str):
    """A ``KEY=VALUE`` text from a file."""

    path: Path


def texts_of_file(path: str | Path) -> list[str]:
    """Read a file of values, nested or with dotted keys, as `FileText` for `Config.override`.

    Plain YAML values are parsed as on the command line: `1e-3` is a number, `yes` is text.

    Raises:
        ConfigError: the file has another extension, cannot be read, is malformed or not a mapping, or sets a key twice.
    """
    path = Path(path)
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise ConfigError(f"{path}: a file of values ends in .json, .yaml or .yml")
    import yaml  # imported here because most commands do not need it

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}  # noqa: RUF012

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            _require_unique([str(key.value) for key, _ in node.value])
            return super().construct_mapping(node, deep)

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _require_unique([key for key, _ in pairs])
        return dict(pairs)

    def construct(loader: Any, node: Any) -> Any:
        if node.style is not None:  # quoted
            return node.value
        return None if node.value in ("", "~") else _read_word(node.value)

    Loader.add_constructor("tag:yaml.org,2002:str", construct)
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            found = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=mapping)
        else:
            found = yaml.load(text, Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if found is None:
        raise ConfigError(f"{path}: is empty")
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: expected a mapping from keys to values, got {type(found).__name__}")
    try:
        values = list(_flat(found, ""))
        _require_unique([key for key, _ in values])  # such as a: {b: 1} and a.b: 2
        texts = [FileText(f"{key}={json.dumps(value)}") for key, value in values]
    except (TypeError, ValueError) as error:  # the value of an explicit tag such as !!timestamp
        raise ConfigError(f"{path}: {error}") from error
    for text in texts:
        text.path = path
    return list(texts)


def _flat(mapping: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in mapping.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and is_namespace(key):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _require_unique(keys: Sequence[str]) -> None:
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"{twice[0]} is set twice")


def _finite(text: str) -> float:
    """Parse a number; raises a ValueError for one that is too large, such as 1e400."""
    if math.isinf(found := float(text)):
        raise ValueError(f"{text} is too large for a number")
    return found


def _refuse_constant(name: str) -> NoReturn:
    """Reject `NaN` and `Infinity`, for `json.loads(parse_constant=)`."""
    raise ValueError(f"{name} is not JSON")


def encode(value: Any) -> Any:
    """Return `value` as JSON data.

    A function is written as "module:name" if that finds it. An object with `get_config` is written as its class and
    config. Other values that JSON cannot hold are written as text, such as lambdas, and tuples as lists.
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
    line = f", line {value.__code__.co_firstlineno}" if isinstance(value, FunctionType) else ""
    return _reference(value) or re.sub(r" at 0x[0-9a-fA-F]+", line, repr(value))


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
        raise ConfigError(f"{key}: {short_repr(what)} cannot be read back, only a function's name can; set {key} again")
    return _find(value, key)


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. A `ConfigError` about a malformed file names the line."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}: malformed JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, NaN, a number of 5,000 digits, or far too deep
        raise ConfigError(f"{path}: malformed JSON: {short_repr(str(error))}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {short_repr(content)}")
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
