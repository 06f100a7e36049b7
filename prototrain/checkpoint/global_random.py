"""Python's, NumPy's, TensorFlow's and Keras's global random generators, left as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from keras.src.backend.common import global_state
from tensorflow.python.eager import context

from prototrain.checkpoint.state import random_state, set_random_state

_SEED = "global_random_seed"  # what Keras calls what `keras.utils.set_random_seed` was given


def global_seed() -> int | None:
    """What `keras.utils.set_random_seed` was last called with; None if it was not, or the session was cleared since."""
    found: int | None = global_state.get_global_attribute(_SEED)
    return found


@contextmanager
def tensorflow_seeded(seed: int) -> Iterator[None]:
    """Let random ops that have no seed depend on this one meanwhile, unless the user has set one for all."""
    tensorflow = context.context()
    is_unset = tensorflow._seed is None
    if is_unset:
        tensorflow._set_global_seed(seed)
    try:
        yield
    finally:
        if is_unset:
            tensorflow._set_global_seed(None)


@contextmanager
def global_random_kept() -> Iterator[None]:
    """Put back, at the end, all global random generators, and what else Keras keeps by thread: its counts of names."""
    host = random_state()
    # TensorFlow has no way to ask for this; eager ops draw their seeds from `_rng`.
    tensorflow = context.context()
    seed, generator = tensorflow._seed, getattr(tensorflow, "_rng", None)
    drawn = None if generator is None else generator.getstate()
    keras = global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER
    values = [dict(vars(tracker)) for tracker in keras]
    try:
        yield
    finally:
        set_random_state(host)
        tensorflow._set_global_seed(seed)
        if drawn is not None:
            tensorflow._rng.setstate(drawn)
        global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER = keras
        for tracker, before in zip(keras, values, strict=True):
            vars(tracker).clear()
            vars(tracker).update(before)
