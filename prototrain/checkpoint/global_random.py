"""Python's, NumPy's, TensorFlow's and Keras's global random generators, left as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prototrain.checkpoint.state import random_state, set_random_state
from prototrain.private_api.of_keras import keras_globals_kept
from prototrain.private_api.of_keras import keras_seed as global_seed
from prototrain.private_api.runtime import drawing_seeds, set_tensorflow_seed, tensorflow_seed

__all__ = ["global_random_kept", "global_seed", "tensorflow_seeded"]


@contextmanager
def tensorflow_seeded(seed: int) -> Iterator[None]:
    """Let random ops that have no seed depend on this one meanwhile, unless the user has set one for all."""
    is_unset = tensorflow_seed() is None
    if is_unset:
        set_tensorflow_seed(seed)
    try:
        yield
    finally:
        if is_unset:
            set_tensorflow_seed(None)


@contextmanager
def global_random_kept() -> Iterator[None]:
    """Put back, at the end, all global random generators, and what else Keras keeps by thread: its counts of names."""
    host = random_state()
    seed, generator = tensorflow_seed(), drawing_seeds()
    drawn = None if generator is None else generator.getstate()
    try:
        with keras_globals_kept():
            yield
    finally:
        set_random_state(host)
        set_tensorflow_seed(seed)
        generator = drawing_seeds()  # another one, which setting the seed has made
        if drawn is not None and generator is not None:
            generator.setstate(drawn)
