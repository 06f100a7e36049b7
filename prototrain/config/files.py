"""Values for a config in a file that people write: JSON or YAML, nested or with dotted keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prototrain.config.schema import SCHEMA
from prototrain.errors import ConfigError


def texts_of_file(path: str | Path) -> list[str]:
    """Read a file's values as `KEY=VALUE` texts, as `Config.override` takes them.

    Args:
        path: a file whose name ends in `.json`, `.yaml` or `.yml`.

    Raises:
        ConfigError: it cannot be read, or holds no mapping from names to values.
    """
    path = Path(path)
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise ConfigError(f"{path}: a file of values ends in .json, .yaml or .yml")
    import yaml  # only here: no other command needs it

    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: expected a mapping from keys to values, got {type(found).__name__}")
    try:
        return [f"{key}={json.dumps(value)}" for key, value in _flat(found, "")]
    except (TypeError, ValueError) as error:  # of YAML's own kinds, such as dates
        raise ConfigError(f"{path}: {error}") from error


def _flat(mapping: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in mapping.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and any(known.startswith(f"{key}.") for known in SCHEMA):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value
