"""A new run takes over variables by names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.checkpoint.weights import load_weights
from prototrain.errors import CheckpointError, ConfigError, ModelError
from prototrain.estimator import WarmStartSettings
from prototrain.estimator.warm_start import warm_start

THERE = {
    "head": np.ones(1, np.float32),
}


class Built:
    """What `warm_start` knows of a model."""

    def __init__(self, **shapes: Any) -> None:
        self.variables = {name: tf.Variable(tf.fill(shape, -1.0)) for name, shape in shapes.items()}

    def load_weights(self, source: Any, **options: Any) -> Any:
        return load_weights(self.variables, source, **options)


def started(here: dict[str, Any], **settings: Any) -> dict[str, list[Any]]:
    built: Any = Built(**here)
    start = WarmStartSettings("there", **settings)
    object.__setattr__(start, "ckpt_to_initialize_from", THERE)  # arrays, in place of a path
    warm_start(built, start)
    return {name: variable.numpy().tolist() for name, variable in built.variables.items()}


def test_several_from_one() -> None:
    names = {"left": "head", "right": "head"}
    assert started({"left": [1], "right": [1], "head": [1]}, var_name_to_prev_var_name=names) == {
        "left": [1],
        "right": [1],
        "head": [1],
    }
    assert started({"left": [1], "head": [1]}, vars_to_warm_start="(?!left)") == {"left": [-1], "head": [1]}
    assert started({"head": [1]}, vars_to_warm_start=None) == {"head": [1]}


def test_messages() -> None:
    for kind, message, names in (
        (ModelError, "model_fn has no variable 'x'; it has head", {"x": "head"}),
        (CheckpointError, "there is no variable 'x' in", {"head": "x"}),
    ):
        with pytest.raises(kind, match=message):
            started({"head": [1]}, var_name_to_prev_var_name=names)
    with pytest.raises(ConfigError, match="has no var_name_to_vocab_info: rows are not taken over by words"):
        WarmStartSettings("there", var_name_to_vocab_info={})  # type: ignore[call-arg]
