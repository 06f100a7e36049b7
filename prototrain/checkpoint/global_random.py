"""Python's, NumPy's, TensorFlow's and Keras's global random generators: kept, put back, left as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from prototrain.private_api.of_keras import keras_globals_kept
from prototrain.private_api.of_keras import keras_seed as global_seed
from prototrain.private_api.runtime import drawing_seeds, set_tensorflow_seed, tensorflow_seed

__all__ = [
    "global_random_kept",
    "global_seed",
    "random_state",
    "random_state_kept",
    "set_random_state",
    "tensorflow_seeded",
]


def random_state() -> dict[str, Any]:
    """The state of Python's and NumPy's global random generators."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put back what `random_state` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put back, at the end, the state of Python's and NumPy's global random generators."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


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
