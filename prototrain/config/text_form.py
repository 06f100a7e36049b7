"""A configuration as text for people: config.txt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prototrain.config.schema import SCHEMA, UNSET


def as_lines(config: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    """Write what is in force, defaults included, as aligned ``key = value`` lines grouped by namespace.

    Args:
        config: has the keys that were set, and gives those and the schema's defaults.
        plain: what was set, as JSON data.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for key in dict.fromkeys([*SCHEMA, *config]):
        if key not in config and (SCHEMA[key].default is UNSET or not _in_force(config, key)):
            continue
        group = ".".join(key.split(".")[:-1][:2])
        value = json.dumps(plain[key] if key in config else SCHEMA[key].default, ensure_ascii=False)
        groups.setdefault(group, []).append((key, value if key in config else f"{value}  # default"))
    blocks = []
    for lines in groups.values():
        width = max(len(key) for key, _ in lines)
        blocks.append("".join(f"{key:<{width}} = {value}\n" for key, value in lines))
    # A lone surrogate is a text in Python and in JSON, but not in UTF-8.
    return "\n".join(blocks).encode("utf-8", "backslashreplace").decode("utf-8")


def _in_force(config: Mapping[str, Any], key: str) -> bool:
    """Tell whether the default of `key` means anything beside the other settings."""
    owner, _, rest = key.rpartition(".")
    namespace, _, method = owner.rpartition(".")
    if namespace in ("model.optimizer", "model.lr_schedule"):
        return bool(config.get(f"{namespace}.method") == method)
    return owner != "model.clip_gradients" or rest == "global_norm" or bool(config[owner])
