"""A function that TensorFlow compiles, of an object of which there may be many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf


def compiled(function: Callable[..., Any]) -> Any:
    """`tf.function` without AutoGraph, for a method or a function inside of another one.

    TensorFlow counts how often a function is traced by its code, over all objects that have it, and warns of the fifth
    time: that would be the fifth evaluation in a loop, though each of them traces its own model once.
    """
    return tf.function(partial(function), autograph=False)
