"""The old name of `prototrain.checkpoint.random`, until `data/source.py` imports the new one."""

from prototrain.checkpoint.random import (
    global_random_kept,
    global_seed,
    random_state,
    random_state_kept,
    set_random_state,
    tensorflow_seeded,
)

__all__ = [
    "global_random_kept",
    "global_seed",
    "random_state",
    "random_state_kept",
    "set_random_state",
    "tensorflow_seeded",
]
