"""The state of random generators: those of an object, and the global ones of Python, NumPy, TensorFlow and Keras."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from prototrain.checkpoint.json_codec import decode, encode
from prototrain.errors import CheckpointError
from prototrain.tf_private import drawing_seeds, keras_globals_kept, set_tensorflow_seed, tensorflow_seed
from prototrain.tf_private import keras_seed as global_seed

__all__ = [
    "GENERATORS",
    "GeneratorState",
    "global_random_kept",
    "global_seed",
    "random_state",
    "random_state_kept",
    "set_random_state",
    "tensorflow_seeded",
]

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


class GeneratorState:
    """The state of one random generator, so that it draws the same numbers after a restore.

    Args:
        generator: one of `GENERATORS`.
    """

    def __init__(self, generator: np.random.Generator | np.random.RandomState | random.Random) -> None:
        self._generator = generator

    def state_dict(self) -> Any:
        """The generator's state, for `encode`.

        Raises:
            CheckpointError: it has none, such as `random.SystemRandom`.
        """
        found = self._generator
        try:
            if isinstance(found, random.Random):
                return found.getstate()
            if isinstance(found, np.random.RandomState):
                return found.get_state(legacy=False)
            seeds = found.bit_generator.seed_seq  # what `spawn` makes other generators of
            spawning = seeds.state if isinstance(seeds, np.random.SeedSequence) else None
            return {"bits": found.bit_generator.state, "seeds": spawning}
        except NotImplementedError as error:
            raise CheckpointError(f"a {type(found).__name__} cannot be saved: it has no state") from error

    def load_state_dict(self, state: Any) -> None:
        """Restore the state of a generator of the same kind."""
        found: Any = self._generator
        if isinstance(found, random.Random):
            found.setstate(state)
        elif isinstance(found, np.random.RandomState):
            found.set_state(state)
        else:
            bits, seeds = found.bit_generator, state["seeds"]
            bits.state = state["bits"]
            if seeds is not None and isinstance(bits.__getstate__(), tuple):
                bits.__setstate__((bits.state, np.random.SeedSequence(**seeds)))
            elif seeds is not None and seeds["n_children_spawned"]:  # NumPy 1 has no way to set it
                raise CheckpointError("a generator that has spawned others can only be restored with NumPy 2 or later")


def random_state() -> dict[str, Any]:
    """The state of Python's and NumPy's global random generators, as JSON can hold it."""
    return {name: encode(state, name) for name, state in _global_states().items()}


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what `random_state` returned."""
    _set_global_states({name: decode(coded) for name, coded in state.items()})


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore, at the end, the state of Python's and NumPy's global random generators."""
    before = _global_states()
    try:
        yield
    finally:
        _set_global_states(before)


def _global_states() -> dict[str, Any]:
    return {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}


def _set_global_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])


@contextmanager
def tensorflow_seeded(seed: int) -> Iterator[None]:
    """Give random ops without a seed this one meanwhile, unless the user has called `tf.random.set_seed`."""
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
    """Restore, at the end, all global random generators, and Keras's counts of names."""
    seed, generator = tensorflow_seed(), drawing_seeds()
    drawn = None if generator is None else generator.getstate()
    with random_state_kept(), keras_globals_kept():
        try:
            yield
        finally:
            set_tensorflow_seed(seed)
            generator = drawing_seeds()  # setting the seed has made another one
            if drawn is not None and generator is not None:
                generator.setstate(drawn)
