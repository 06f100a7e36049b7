"""Whether what a checkpoint holds fits the variables that there are now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from prototrain.errors import CheckpointError
from prototrain.system.wording import FRESH
from prototrain.towers import OF_TOWER, is_seed, seed_of_tower

_CURE = f"use {FRESH}, another trainer.experiment_name, or model.weights_load_path to take over what matches"


def match_towers(variables: Mapping[str, Any], saved: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Give each tower's own values to the towers that there are now, where there were more or fewer of them.

    Args:
        variables: those to be restored, by name.
        saved: what a checkpoint holds, by name.
    """
    matched = {name: value for name, value in saved.items() if OF_TOWER not in name or name in variables}
    for name in variables:
        first, separator, index = name.partition(OF_TOWER)
        if separator and name not in saved and first in saved:
            value = saved[first]
            matched[name] = seed_of_tower(value, int(index)) if is_seed(first, value) else value
    return matched


def check_fit(variables: Mapping[str, Any], saved: Mapping[str, tf.Tensor], where: str, *, cure: str = _CURE) -> None:
    """Check that a checkpoint has exactly these variables.

    Args:
        variables: those to be restored, by name.
        saved: what the checkpoint holds, by name.
        where: what the checkpoint is called.
        cure: what to do if it does not fit.

    Raises:
        CheckpointError: it names the ones that only one side has, or whose shapes or dtypes differ.
    """
    problems = [f"{name} is new in the model" for name in variables if name not in saved]
    problems += [f"{name} is no longer in the model" for name in saved if name not in variables]
    for name in variables.keys() & saved.keys():
        here, there = (describe_variable(side[name]) for side in (variables, saved))
        if here != there:
            problems.append(f"{name} is {there} there and {here} here")
    if problems:
        mine, theirs = ({re.sub(r"_\d+", "", name) for name in names} for names in (variables, saved))
        numbered = mine == theirs and variables.keys() != saved.keys()
        hint = "Keras numbers unnamed layers by process, so give them names; else " if numbered else ""
        more = f" (and {len(problems) - 4} more)" if len(problems) > 4 else ""
        raise CheckpointError(
            f"checkpoint {where} does not fit this model: {'; '.join(sorted(problems)[:4])}{more}; {hint}{cure}"
        )


def describe_variable(variable: Any) -> str:
    """Dtype and shape in a few characters, such as ``float32[64,128]``."""
    return f"{tf.as_dtype(variable.dtype).name}[{','.join(str(size) for size in variable.shape)}]"
