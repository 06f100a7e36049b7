"""Lookup tables that `build` makes: one with the same contents is made once, in the first call.

Made in a traced call, a table would be filled anew in every step, and no export would find it. Tables without changes
and hold the same are one; what TensorFlow cannot tell the contents of stays as it is.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from prototrain.model.keras_hooks import present_call
from prototrain.private_api.runtime import is_table_made, table_contents


def _contents(initializer: Any, default_value: Any) -> tuple[Any, ...] | None:
    """What a table is going to hold, if that is known now."""
    held = table_contents(initializer)
    if held is None:
        return None
    default = tf.get_static_value(default_value) if tf.is_tensor(default_value) else default_value
    return initializer.key_dtype.name, initializer.value_dtype.name, held, repr(default)


def _hook_tables() -> None:
    kind: Any = tf.lookup.StaticHashTable
    original = kind.__init__

    def new(cls: type, initializer: Any = None, default_value: Any = None, *more: Any, **named: Any) -> Any:
        call = present_call()
        contents = None if call is None or initializer is None else _contents(initializer, default_value)
        if call is None or contents is None:
            return object.__new__(cls)
        return call.table((cls.__qualname__, *contents), lambda: object.__new__(cls))

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_table_made(self):
            original(self, *args, **kwargs)

    kind.__new__, kind.__init__ = new, initialise


_hook_tables()
