"""The global random generators."""

from __future__ import annotations

import random

import numpy as np

from prototrain.checkpoint.random import random_state, set_random_state


def test_random_state_comes_back() -> None:
    state = random_state()
    expected = random.random(), np.random.random()
    set_random_state(state)
    assert (random.random(), np.random.random()) == expected
