"""`prototrain config`: list the keys of a model's config with their values, defaults and types."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from prototrain.commands.arguments import add_model, given
from prototrain.config import Config
from prototrain.config.schema import SCHEMA, UNSET
from prototrain.config.values import encode
from prototrain.model import load_model
from prototrain.system.terminal import Table, import_tensorflow, one_line, print_tables

_HEADERS = ("key", "value", "default", "type")


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    config = commands.add_parser(
        "config",
        help="list a model's config keys",
        description="List the config keys that count for a model: the value that a run would have with the same -s and "
        "-c, the default, and the type. Arguments of optimizers and schedules that are not chosen are left out.",
    )
    add_model(config)
    config.add_argument("--all", action="store_true", help="list the other optimizers' and schedules' arguments, too")
    config.add_argument("--json", action="store_true", help="print one JSON object by key, for another program")
    config.set_defaults(command=_config)


def _config(options: argparse.Namespace) -> None:
    import_tensorflow()
    config = load_model(options.model).config
    own = dict(config)
    config.override(given(options))
    found = {key: _facts(key, config, own) for key in dict.fromkeys([*SCHEMA, *config])}
    shown = {key: facts for key, facts in found.items() if options.all or config.why_not_chosen(key) is None}
    if options.json:
        print(json.dumps(shown, indent=2))
        return
    rows = []
    for key, facts in shown.items():
        texts = {name: _text(facts[name]) for name in ("value", "default") if name in facts}
        default = "required" if facts["required"] else texts.get("default", "")
        rows.append([key, texts.get("value", ""), default, facts["type"]])
    print_tables(Table(rows, _HEADERS, cut=("value", "default")))


def _facts(key: str, config: Config, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON data about a key. "value" and "default" are left out if there is none.

    The default of a model's own key is its value in the model's config.
    """
    spec = SCHEMA.get(key)
    default = own.get(key, UNSET) if spec is None else spec.default
    value = config.get(key, default)
    kind = spec.type if spec is not None else type(value if default is UNSET else default).__name__
    facts = {"value": value, "default": default}
    plain = {name: encode(fact) for name, fact in facts.items() if fact is not UNSET}
    if spec is not None and spec.choices:
        plain["choices" if kind in ("str", "optimizer") else "also"] = list(spec.choices)
    return {**plain, "type": kind, "required": spec is not None and spec.required}


def _text(value: Any) -> str:
    return one_line(value) if isinstance(value, str) else json.dumps(value)
