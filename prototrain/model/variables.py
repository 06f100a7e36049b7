"""The variables of a model: chosen by filters, shown in a table."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from prototrain.config import Config
from prototrain.errors import ConfigError
from prototrain.system.tables import Table


def select(variables: Mapping[str, tf.Variable], config: Config, namespace: str) -> dict[str, tf.Variable]:
    """Choose the variables that ``<namespace>.filter_fn`` and ``<namespace>.filter_regex`` accept.

    Args:
        variables: by name.
        config: a variable is chosen when the function, if given, returns True for it and the regular expression, if
            given, matches its name from the start (`re.match`).
        namespace: such as ``model.trainable_variables``.

    Raises:
        ConfigError: a filter is set and accepts none of the variables.
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
        names = textwrap.shorten(", ".join(variables), 400, placeholder=" ...")
        raise ConfigError(f"{' and '.join(used)}:{value} accepts none of the variables {names}")
    return chosen


def variable_table(
    variables: Mapping[str, tf.Variable],
    trained: Mapping[str, Any],
    decayed: Mapping[str, Any],
    *,
    decays: str = "decays",
) -> Table:
    """Name, shape, number of parameters, and what happens to each variable, as a table."""
    sizes = {name: variable.shape.num_elements() or 0 for name, variable in variables.items()}
    rows: list[tuple[object, ...]] = [
        (
            name,
            str(list(variables[name].shape)),
            size,
            *("yes" if name in chosen else "" for chosen in (trained, decayed)),
        )
        for name, size in sizes.items()
    ]
    rows.append(("total", "", sum(sizes.values()), "", ""))
    headers = ["variable", "shape", "parameters", "trained", decays]
    return Table(rows, headers, options={"intfmt": ","})
