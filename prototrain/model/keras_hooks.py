"""Hooks in Keras and TensorFlow that report to the call of `build` in progress.

Keras has no notion of a function that is called again and means the same layers. So its constructors ask the present
`BuildCall` first, and return the object of an earlier call. Variables report each use, so that what a first call
changes can be restored. The hooks are installed when this module is imported; in a thread without a call of `build`
they do nothing.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from prototrain.private_api.of_keras import (
    KerasVariable,
    functional_kinds,
    hold,
    in_stateless_scope,
    snake_case,
    stand_in,
)
from prototrain.private_api.runtime import is_table_made, raw_handle, table_contents, tell_of_uses

if TYPE_CHECKING:
    from prototrain.model.layer_cache import BuildCall

Method = Callable[..., Any]

STATEFUL = (
    keras.layers.Layer,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
    KerasVariable,
)
"""The Keras classes with variables, whose objects are made once."""

_thread = threading.local()  # towers are traced in threads


@contextmanager
def listening(listener: BuildCall) -> Iterator[None]:
    """Report to a call of `build` what Keras does in this thread."""
    outer = present_call()
    _thread.listener = listener
    try:
        yield
    finally:
        _thread.listener = outer


@contextmanager
def calling(layer: Any) -> Iterator[None]:
    """Treat what this thread makes and assigns in the block as a layer's own, as in its call."""
    listener = present_call()
    with nullcontext() if listener is None else listener.inside(layer):
        yield


def automatic_name(layer: Any) -> str | None:
    """The name that Keras gives to an unnamed layer of this class, without the number; None if this one has a name."""
    kind = snake_case(type(layer).__name__)
    return kind if re.fullmatch(rf"{kind}(_\d+)?", layer.name) else None


def has_automatic_name(layer: Any) -> bool:
    """Whether Keras has named a layer."""
    return automatic_name(layer) is not None


def place_again(variable: Any) -> None:
    """Make a Keras variable hold a new `tf.Variable` of the same value, placed by the present strategy."""
    held = variable.value
    new = tf.Variable(
        tf.convert_to_tensor(held),
        dtype=held.dtype,
        trainable=held.trainable,
        name=held.name.split(":")[0],
        aggregation=held.aggregation,
        synchronization=held.synchronization,
    )
    hold(variable, new)


# -- values of variables -----------------------------------------------------------------------------------------------


class VariableValues:
    """The values of variables before their first use, wherever the variables belong.

    A layer may count in a `tf.Variable` that Keras does not know, and an op may change a random generator's state. But
    whatever uses a variable from Python reads its handle first, and reading the handle is reported.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, Any]] = {}

    def note(self, variable: Any) -> None:
        """A variable is about to be used."""
        handle = raw_handle(variable)  # not the property, which leads here
        if id(handle) in self._before:
            return
        with tf.init_scope():
            # A variable that a graph is making has no value yet, nor has one that is being initialized.
            if tf.executing_eagerly() and hasattr(handle, "numpy") and tf.raw_ops.VarIsInitializedOp(resource=handle):
                # A tensor keeps its value: only a variable that changes is copied.
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
                self._before[id(handle)] = (variable, value)

    @contextmanager
    def keeping(self, *variables: Any) -> Iterator[None]:
        """Keep what is assigned in this block to these variables, and to those that were not used before."""
        with noting(None) if _noted_by() is self else nullcontext():
            yield
        for variable in variables:
            self._before.pop(id(raw_handle(variable)), None)

    def restore(self) -> None:
        """Assign the values from before."""
        for variable, value in self._before.values():
            variable.assign(value)


@contextmanager
def restoring_values() -> Iterator[VariableValues]:
    """Restore, at the end, every variable that this thread uses in the block, except in graphs traced before."""
    before = VariableValues()
    try:
        with noting(before):
            yield before
    finally:
        before.restore()


def _noted_by() -> Any:
    return getattr(_thread, "notes", None)


@contextmanager
def noting(notes: Any) -> Iterator[None]:
    """Call `notes.note(variable)` before this thread uses a variable; None for nothing."""
    outer = _noted_by()
    _thread.notes = notes
    try:
        yield
    finally:
        _thread.notes = outer


# -- the hooks --------------------------------------------------------------------------------------------------------


def present_call() -> BuildCall | None:
    """The call of `build` in progress in this thread, or None."""
    listener: BuildCall | None = getattr(_thread, "listener", None)
    return listener


def _replace(owner: type, name: str, make: Callable[[Method], Method]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def _hook_constructor(kind: type) -> None:
    original: Any = kind.__new__

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        def make() -> Any:
            return object.__new__(cls) if original is object.__new__ else original(cls, *args, **kwargs)

        # Constructors call those of their base classes, and not always with the arguments.
        listener = None if getattr(_thread, "constructing", False) else present_call()
        if listener is None:
            return make()
        found = listener.find(cls, args, kwargs)
        if found is not None:
            return found
        _thread.constructing = True
        try:
            made = make()
        finally:
            _thread.constructing = False
        if isinstance(made, keras.layers.Layer):
            made.build = _built_once(made, made.build)
        _hook_initializer(type(made))
        listener.add(made)
        return made

    new.__signature__ = inspect.signature(kind.__init__)  # type: ignore[attr-defined,misc]
    kind.__new__ = new  # type: ignore[method-assign,assignment]


def _hook_initializer(kind: type) -> None:
    """Make a class initialize each object once."""
    original = kind.__init__  # type: ignore[misc]
    if hasattr(original, "asks_first"):
        return

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        listener = present_call()
        if listener is None:
            original(self, *args, **kwargs)
        elif not listener.is_initialized(self):
            with listener.ignoring():
                original(self, *args, **kwargs)

    initialize.asks_first = True  # type: ignore[attr-defined]
    initialize.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    kind.__init__ = initialize  # type: ignore[misc]


def _built_once(layer: Any, build: Method) -> Method:
    @functools.wraps(build)
    def build_once(*args: Any, **kwargs: Any) -> Any:
        listener = present_call()
        if listener is None:
            return build(*args, **kwargs)
        if listener.is_done(layer):
            return None
        with listener.ignoring():
            return build(*args, **kwargs)

    return build_once


def _once(original: Method) -> Method:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = present_call()
        return None if listener is not None and listener.is_done(self) else original(self, *args, **kwargs)

    return method


def _called(original: Method) -> Method:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = present_call()
        if listener is None:
            return original(self, *args, **kwargs)
        with listener.inside(self):
            return original(self, *args, **kwargs)

    return call


def _assigned(original: Method) -> Method:
    def assign(self: Any, value: Any) -> Any:
        listener = present_call()
        if listener is None or in_stateless_scope():
            return original(self, value)
        return listener.assign(self, value, lambda: original(self, value))

    return assign


def _added(original: Method) -> Method:
    def add_loss(self: Any, loss: Any) -> None:
        original(self, loss)
        listener = present_call()
        if listener is not None and not in_stateless_scope():
            listener.note_losses(keras.tree.flatten(loss))

    return add_loss


def _drawn(original: Method) -> Method:
    def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = present_call()
        own = None if listener is None else listener.seed_state(self.state.value)
        if own is None:
            return original(self, *args, **kwargs)
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.state = stand_in(self.state, own)
        return original(other, *args, **kwargs)

    return draw


def _entered(original: Method) -> Method:
    def enter(self: Any) -> Any:
        full = original(self)
        listener = present_call()
        if listener is not None:
            listener.enter_scope(self.name, full)
        return full

    return enter


def _left(original: Method) -> Method:
    def leave(self: Any, *error: Any) -> Any:
        listener = present_call()
        if listener is not None:
            listener.leave_scope()
        return original(self, *error)

    return leave


def _outside_of_graphs(original: Method) -> Method:
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        if present_call() is None:
            return original(self, *args, **kwargs)
        with tf.init_scope():
            return original(self, *args, **kwargs)

    return read


def _hook_properties() -> None:
    layer: Any = keras.layers.Layer
    trainable, losses = layer.trainable, layer.losses
    layer.trainable = trainable.setter(_once(trainable.fset))

    def read_losses(self: Any) -> Any:
        found = losses.fget(self)
        listener = present_call()
        if listener is not None:
            listener.note_taken(self, found)
        return found

    layer.losses = property(read_losses, doc=losses.__doc__)


def _hook_keras() -> None:
    for kind in (*STATEFUL, keras.Model, keras.Sequential, *functional_kinds()):
        _hook_constructor(kind)
    _replace(keras.layers.Layer, "__call__", _called)
    _replace(keras.layers.Layer, "add_loss", _added)
    _replace(keras.layers.Layer, "get_weights", _outside_of_graphs)
    _replace(KerasVariable, "assign", _assigned)
    _replace(keras.random.SeedGenerator, "next", _drawn)
    _replace(keras.Model, "load_weights", _once)
    for name in ("add", "pop"):
        _replace(keras.Sequential, name, _once)
    for name in ("Normalization", "Discretization", "TextVectorization", "StringLookup", "IntegerLookup"):
        _replace(getattr(keras.layers, name), "adapt", _once)
    _replace(tf.name_scope, "__enter__", _entered)
    _replace(tf.name_scope, "__exit__", _left)
    _hook_properties()


def _table_key(initializer: Any, default_value: Any) -> tuple[Any, ...] | None:
    """A key for the contents of a lookup table, or None if they are not known yet."""
    held = table_contents(initializer)
    if held is None:
        return None
    default = tf.get_static_value(default_value) if tf.is_tensor(default_value) else default_value
    return initializer.key_dtype.name, initializer.value_dtype.name, held, repr(default)


def _hook_tables() -> None:
    """Make lookup tables once, by their contents: a table of a traced call would be filled in every step."""
    kind: Any = tf.lookup.StaticHashTable
    original = kind.__init__

    def new(cls: type, initializer: Any = None, default_value: Any = None, *more: Any, **named: Any) -> Any:
        call = present_call()
        contents = None if call is None or initializer is None else _table_key(initializer, default_value)
        if call is None or contents is None:
            return object.__new__(cls)
        return call.table((cls.__qualname__, *contents), lambda: object.__new__(cls))

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_table_made(self):
            original(self, *args, **kwargs)

    kind.__new__, kind.__init__ = new, initialize


def _note_use(variable: Any) -> None:
    notes = _noted_by()
    if notes is not None:
        notes.note(variable)


_hook_keras()
_hook_tables()
tell_of_uses(_note_use)
