"""Filters and tables of a model's variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from rich.filesize import decimal

from prototrain.config import Config
from prototrain.errors import ConfigError
from prototrain.system.terminal import Table, shorten_list, shortened

_MOST_ROWS = 20


def select(variables: Mapping[str, tf.Variable], config: Config, namespace: str) -> dict[str, tf.Variable]:
    """Select the variables that ``<namespace>.filter_fn`` and ``<namespace>.filter_regex`` accept.

    A variable is selected if the function, if set, returns True for it, and the regular expression, if set, matches its
    name from the start (`re.match`).

    Raises:
        ConfigError: the filters accept none of the variables.
    """
    filters = {name: config[f"{namespace}.{name}"] for name in ("filter_fn", "filter_regex")}
    accept, pattern = filters.values()
    chosen = {
        name: variable
        for name, variable in variables.items()
        if (accept is None or accept(variable)) and (pattern is None or re.match(pattern, name))
    }
    used = [f"{namespace}.{name}" for name, value in filters.items() if value is not None]
    if variables and used and not chosen:
        value = f" {pattern!r}" if accept is None else ""
        names = shorten_list(list(variables), 10)
        raise ConfigError(f"{' and '.join(used)}:{value} accepts none of the variables {names}")
    return chosen


def layer_table(variables: Mapping[str, tf.Variable], trained: Mapping[str, Any]) -> str:
    """Return a table of the parameters of each layer, in at most 20 rows, and a line of totals."""
    rows: list[tuple[object, ...]] = []
    for layer, names in _by_layer(variables).items():
        kinds = list(dict.fromkeys(name.rpartition("/")[2] for name in names))
        sizes = [_size(variables[name] for name in chosen) for chosen in (names, trained.keys() & names)]
        rows.append((shortened(layer, 30), shorten_list(kinds, 2), *sizes))
    table = Table(rows, ["layer", "variables", "parameters", "trained"], number_format=",")
    total, training = _size(variables.values()), _size(variables[name] for name in trained)
    size = sum(_size([one]) * tf.as_dtype(one.dtype).size for one in variables.values())
    return f"{table}\n{total:,} parameters, {training:,} trained, {decimal(size)}" if rows else "no variables"


def _by_layer(variables: Mapping[str, tf.Variable]) -> dict[str, list[str]]:
    """Group variable names by layer, or by outer scopes if there are many layers; the smallest groups become one."""
    for depth in range(max([1, *(name.count("/") for name in variables)]), 0, -1):
        layers: dict[str, list[str]] = {}
        for name in variables:
            layers.setdefault("/".join(name.split("/")[:-1][:depth]) or name, []).append(name)
        if len(layers) <= _MOST_ROWS:
            return layers
    by_size = sorted(layers, key=lambda layer: -_size(variables[name] for name in layers[layer]))
    small = by_size[_MOST_ROWS - 1 :]
    others = [name for layer in small for name in layers.pop(layer)]
    return {**layers, "others": others}


def _size(variables: Iterable[tf.Variable]) -> int:
    return sum(variable.shape.num_elements() or 0 for variable in variables)


def variable_table(
    variables: Mapping[str, tf.Variable], trained: Mapping[str, Any], decayed: Mapping[str, Any]
) -> Table:
    """Return a table with each variable's name, shape and number of parameters, and whether it trains and decays."""
    rows: list[tuple[object, ...]] = [
        (name, str(list(one.shape)), _size([one]), *("yes" if name in chosen else "" for chosen in (trained, decayed)))
        for name, one in variables.items()
    ]
    rows.append(("total", "", _size(variables.values()), "", ""))
    return Table(rows, ["variable", "shape", "parameters", "trained", "decays"], number_format=",")
