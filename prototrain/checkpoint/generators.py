"""The state of random generators that belong to somebody, of NumPy and of Python, as values that JSON can hold."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from prototrain.errors import CheckpointError

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_SEEDS = "seed_sequence"


class GeneratorState:
    """Takes and gives the state of a random generator; what it draws next is what it would have drawn.

    Args:
        generator: one of `GENERATORS`.
    """

    def __init__(self, generator: np.random.Generator | np.random.RandomState | random.Random) -> None:
        self._generator = generator

    def state_dict(self) -> Any:
        """The generator's state; arrays in it are for `plain` to turn into lists.

        Raises:
            CheckpointError: it has none, as one of the operating system has not.
        """
        found = self._generator
        try:
            if isinstance(found, random.Random):
                return found.getstate()
            if isinstance(found, np.random.RandomState):
                return found.get_state(legacy=False)
            return {**_bits(found), _SEEDS: _seeds(found)}
        except NotImplementedError as error:
            raise CheckpointError(f"a {type(found).__name__} cannot be saved: it has no state") from error

    def load_state_dict(self, state: Any) -> None:
        """Take over a state that was saved of a generator of the same kind."""
        found = self._generator
        if isinstance(found, random.Random):
            version, words, gauss = state
            found.setstate((version, tuple(words), gauss))
        elif isinstance(found, np.random.RandomState):
            found.set_state(_with_arrays(found.get_state(legacy=False), state))
        else:
            found.bit_generator.state = _with_arrays(_bits(found), state)
            if state[_SEEDS] is not None:
                _set_seeds(found, state[_SEEDS])


def _bits(generator: np.random.Generator) -> Any:
    return generator.bit_generator.state


def _seeds(generator: np.random.Generator) -> Any:
    """What `spawn` makes other generators of, or None if that is of the user's own kind."""
    seeds = generator.bit_generator.seed_seq
    return seeds.state if isinstance(seeds, np.random.SeedSequence) else None


def _set_seeds(generator: np.random.Generator, state: Any) -> None:
    bits: Any = generator.bit_generator
    if isinstance(bits.__getstate__(), tuple):
        seeds = np.random.SeedSequence(**{**state, "spawn_key": tuple(state["spawn_key"])})
        bits.__setstate__((bits.state, seeds))
    elif state["n_children_spawned"]:  # before NumPy 2 not even a pickled generator kept them
        raise CheckpointError("a generator that has spawned others is only brought back with NumPy 2 or later")


def _with_arrays(example: Any, value: Any) -> Any:
    """Nested values with arrays again where `example` has them."""
    if isinstance(example, Mapping):
        return {key: _with_arrays(item, value[key]) for key, item in example.items()}
    return np.array(value, example.dtype) if isinstance(example, np.ndarray) else value
