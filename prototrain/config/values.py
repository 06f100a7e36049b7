"""Config values as people write them: on the command line, in the space of a sweep, and in JSON and YAML files."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from prototrain.config.schema import SCHEMA
from prototrain.errors import ConfigError

_WORDS: Final = {"true": True, "false": False, "none": None, "null": None}
_NUMBER: Final = re.compile(r"[+-]?(0|[1-9]\d*|(\d+\.\d*|\.\d+)(e[+-]?\d+)?|\d+e[+-]?\d+)", re.IGNORECASE)


def read_value(text: str) -> Any:
    """Parse the text of one value.

    In addition to JSON, this takes `true`, `false`, `none` and `null` in any case, numbers such as `.25`, `1.` and
    `1E-3`, and lists of all these. Everything else is text, as is anything in single or double quotes.

    >>> [read_value(text) for text in ("False", ".25", "[1, None]", "adam", "'1'")]
    [False, 0.25, [1, None], 'adam', '1']
    """
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        return text
    except ValueError:  # not JSON
        pass
    word = text.strip()
    found = _read_word(word)
    if found is not word:
        return found
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
        return float(text) if set(".eE") & set(text) else int(text)
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


def texts_of_file(path: str | Path) -> list[str]:
    """Read a file of values, nested or with dotted keys, as `KEY=VALUE` texts for `Config.override`.

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
            found = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=mapping)
        else:
            found = yaml.load(text, Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: expected a mapping from keys to values, got {type(found).__name__}")
    try:
        values = list(_flat(found, ""))
        _require_unique([key for key, _ in values])  # such as a: {b: 1} and a.b: 2
        return [f"{key}={json.dumps(value)}" for key, value in values]
    except (TypeError, ValueError) as error:  # the value of an explicit tag such as !!timestamp
        raise ConfigError(f"{path}: {error}") from error


def _flat(mapping: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in mapping.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and any(known.startswith(f"{key}.") for known in SCHEMA):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _require_unique(keys: Sequence[str]) -> None:
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"{twice[0]} is set twice")


def refuse_constant(name: str) -> NoReturn:
    """Reject `NaN` and `Infinity`, for `json.loads(parse_constant=)`."""
    raise ValueError(f"{name} is not JSON")
