"""What a new run takes over from a checkpoint, by names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from prototrain.errors import CheckpointError, ModelError
from prototrain.estimator.specs import WarmStartSettings
from prototrain.model.built import BuiltModel

Arrays = dict[str, np.ndarray[Any, Any]]


def warm_start(built: BuiltModel, settings: WarmStartSettings) -> str:
    """Give a model the variables that a checkpoint has.

    Returns:
        a table of what became of each variable.

    Raises:
        CheckpointError: there is nothing readable, it lacks a variable that is named, or nothing in it matches.
        ModelError: the model lacks one.
    """
    ignore = [f"(?:{settings.exclude}).*"]  # from the start of a name
    return built.load_weights(
        settings.ckpt_to_initialize_from, ignore=ignore, prepare=partial(_as_here, settings, built.variables)
    )


def _as_here(settings: WarmStartSettings, variables: Mapping[str, Any], there: Arrays) -> Arrays:
    """The arrays of a checkpoint by the names that the variables here have."""
    names = settings.var_name_to_prev_var_name or {}
    unknown = [name for name in names if name not in variables]
    if unknown:
        raise ModelError(f"WarmStartSettings: model_fn has no variable {unknown[0]!r}; it has {', '.join(variables)}")
    lacking = [old for old in names.values() if old not in there]
    if lacking:
        raise CheckpointError(
            f"WarmStartSettings: there is no variable {lacking[0]!r} in {settings.ckpt_to_initialize_from}; there are "
            f"{', '.join(sorted(there))}"
        )
    return {**there, **{name: there[old] for name, old in names.items()}}
