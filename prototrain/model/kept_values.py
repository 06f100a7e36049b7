"""Putting variables back to the values that they had, whoever owns them.

What building or trying out a model changes cannot be listed from outside: a layer may count in a `tf.Variable` that
Keras does not know, and an op may change a random generator's state. But whatever uses a variable from Python asks it
for its handle first, so that is where variables are heard of. Outside of `noting` the hook does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import tensorflow as tf

from prototrain.private_api.runtime import raw_handle, tell_of_uses

_thread = threading.local()  # towers are traced in threads of their own


class KeptValues:
    """The variables that were used, and what they held before."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, Any]] = {}

    def note(self, variable: Any) -> None:
        """A variable is about to be used."""
        handle = raw_handle(variable)  # not the property, which leads here; what an assignment returns has the same one
        if id(handle) in self._before:
            return
        with tf.init_scope():
            # One that a graph is making has no value yet, nor has one whose initial value is being assigned.
            if tf.executing_eagerly() and hasattr(handle, "numpy") and tf.raw_ops.VarIsInitializedOp(resource=handle):
                # A tensor that was read keeps its value: only a variable that changes is copied.
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
                self._before[id(handle)] = (variable, value)

    @contextmanager
    def for_good(self, *variables: Any) -> Iterator[None]:
        """What these variables are given meanwhile, and those that were not used before, they are to keep."""
        with noting(None) if _noted_by() is self else nullcontext():
            yield
        for variable in variables:
            self._before.pop(id(raw_handle(variable)), None)

    def put_back(self) -> None:
        """Give the variables that were noted what they held."""
        for variable, value in self._before.values():
            variable.assign(value)


@contextmanager
def keeping_values() -> Iterator[KeptValues]:
    """Put back, at the end, the value of every variable that this thread uses meanwhile, traced or not.

    Ops of a graph that was traced before are not heard of.
    """
    kept = KeptValues()
    try:
        with noting(kept):
            yield kept
    finally:
        kept.put_back()


class Notes(Protocol):
    """Who wants to hear of variables."""

    def note(self, variable: Any) -> None:
        """A variable is about to be used."""


def _noted_by() -> Notes | None:
    found: Notes | None = getattr(_thread, "notes", None)
    return found


@contextmanager
def noting(notes: Notes | None) -> Iterator[None]:
    """Let someone, or no one, hear of each variable that this thread uses."""
    outer = _noted_by()
    _thread.notes = notes
    try:
        yield
    finally:
        _thread.notes = outer


def _note_use(variable: Any) -> None:
    notes = _noted_by()
    if notes is not None:
        notes.note(variable)


tell_of_uses(_note_use)
