"""Variables that hold nothing from one call to the next, so that no checkpoint needs them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def scratch_variable(initial_value: Any, *, name: str, dtype: tf.DType | None = None) -> tf.Variable:
    """Make a variable that is set anew before it is used in a call."""
    # One that is made while a function is traced (in `tf.init_scope`) is none of the function's: `tf.function` would
    # trace once more for it.
    variable = tf.Variable(
        initial_value, trainable=False, name=name, dtype=dtype, experimental_enable_variable_lifting=False
    )
    variable.is_scratch = True
    return variable


def is_scratch(variable: Any) -> bool:
    """Whether a variable was made so."""
    return bool(getattr(variable, "is_scratch", False))
