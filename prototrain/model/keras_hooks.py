"""Hooks in Keras and TensorFlow that ask the present call of `build`.

Keras has no notion of a function that is called again and means the same layers. So the constructors of Keras ask the
present `BuildCall` first and return the object of the first call. Variables report each use, so that what the first
call changes can be restored. The hooks are installed when this module is imported; in a thread without a call of
`build` they do nothing.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from prototrain.tf_private import KerasVariable, functional_kinds, hold, in_stateless_scope, raw_handle, tell_of_uses

if TYPE_CHECKING:
    from prototrain.model.layer_cache import BuildCall

Method = Callable[..., Any]

TABLES = (tf.lookup.KeyValueTensorInitializer, tf.lookup.TextFileInitializer, tf.lookup.StaticHashTable)
"""Lookup tables and their contents; a table of a traced call would be filled in every step."""

CACHED = (
    keras.layers.Layer,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
    KerasVariable,
    *TABLES,
)
"""The classes whose objects are made once."""

_thread = threading.local()  # towers are traced in threads


def present_call() -> BuildCall | None:
    """The call of `build` in progress in this thread, or None."""
    call: BuildCall | None = getattr(_thread, "call", None)
    return call


@contextmanager
def _set(name: str, value: Any) -> Iterator[None]:
    """Set an attribute of this thread for the duration of a block."""
    outer = getattr(_thread, name, None)
    setattr(_thread, name, value)
    try:
        yield
    finally:
        setattr(_thread, name, outer)


@contextmanager
def asking(call: BuildCall) -> Iterator[None]:
    """Let the hooks ask a call of `build`."""
    with _set("call", call):
        yield


@contextmanager
def calling(layer: Any) -> Iterator[None]:
    """Treat what this thread makes and assigns in the block as a layer's own, as in its call."""
    call = present_call()
    with nullcontext() if call is None else call.inside(layer):
        yield


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
        """Keep the value of a variable that is about to be used."""
        handle = raw_handle(variable)  # not the property, which leads here
        if id(handle) in self._before:
            return
        with tf.init_scope():
            # A variable that a graph is making has no value yet, nor has one that is being initialized.
            if tf.executing_eagerly() and hasattr(handle, "numpy") and tf.raw_ops.VarIsInitializedOp(resource=handle):
                # A tensor keeps its value: only a variable that changes is copied.
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
                self._before[id(handle)] = (variable, value)

    def forget(self, variable: Any) -> None:
        """Forget the value of a variable, so that what was assigned to it stays."""
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
        with _set("values", before):
            yield before
    finally:
        before.restore()


@contextmanager
def keeping_changes() -> Iterator[None]:
    """Within `restoring_values`: do not restore variables whose first use is in this block."""
    with _set("values", None):
        yield


def _note_use(variable: Any) -> None:
    values = getattr(_thread, "values", None)
    if values is not None:
        values.note(variable)


# -- constructors -----------------------------------------------------------------------------------------------------


def _hook_constructor(kind: type) -> None:
    original: Any = kind.__new__

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        def plain() -> Any:
            return object.__new__(cls) if original is object.__new__ else original(cls, *args, **kwargs)

        def hooked() -> Any:
            made = plain()
            if isinstance(made, keras.layers.Layer):
                made.build = _built_once(made, made.build)
            _hook_initializer(type(made))
            return made

        # Constructors call those of their base classes, and not always with the arguments.
        call = None if getattr(_thread, "constructing", False) else present_call()
        if call is None:
            return plain()
        with _set("constructing", True):
            return call.obtain(cls, args, kwargs, hooked)

    new.__signature__ = inspect.signature(kind.__init__)  # type: ignore[attr-defined,misc]
    kind.__new__ = new  # type: ignore[method-assign,assignment]


def _hook_initializer(kind: type) -> None:
    """Make a class initialize each object once."""
    original = kind.__init__  # type: ignore[misc]
    if hasattr(original, "asks_first"):
        return

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        call = present_call()
        if call is None:
            original(self, *args, **kwargs)
        elif not call.is_initialized(self):
            with call.ignoring():
                original(self, *args, **kwargs)

    initialize.asks_first = True  # type: ignore[attr-defined]
    initialize.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    kind.__init__ = initialize  # type: ignore[misc]


def _built_once(layer: Any, build: Method) -> Method:
    @functools.wraps(build)
    def build_once(*args: Any, **kwargs: Any) -> Any:
        call = present_call()
        if call is None:
            return build(*args, **kwargs)
        if call.is_done(layer):
            return None
        with call.ignoring():
            return build(*args, **kwargs)

    return build_once


# -- methods ----------------------------------------------------------------------------------------------------------

Hook = Callable[..., Any]
"""Called instead of a method while `build` is called: with the `BuildCall`, the original, self and the arguments."""


def _with_hook(original: Method, hook: Hook) -> Method:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = present_call()
        return original(self, *args, **kwargs) if call is None else hook(call, original, self, *args, **kwargs)

    return method


def _once(call: BuildCall, original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    return None if call.is_done(self) else original(self, *args, **kwargs)


def _add(call: BuildCall, original: Method, self: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    if not call.is_done(self):
        original(self, layer, *args, **kwargs)
    call.note_added(self, layer)


def _call(call: BuildCall, original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    with call.inside(self):
        return original(self, *args, **kwargs)


def _assign(call: BuildCall, original: Method, self: Any, value: Any) -> Any:
    return original(self, value) if in_stateless_scope() else call.assign(self, value, original)


def _add_loss(call: BuildCall, original: Method, self: Any, loss: Any) -> None:
    original(self, loss)
    if not in_stateless_scope():
        call.losses += keras.tree.flatten(loss)


def _losses(call: BuildCall, original: Method, self: Any) -> Any:
    found = original(self)
    call.note_taken(self, found)
    return found


def _next_seed(call: BuildCall, original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    own = call.seed_state(self.state.value)
    if own is None:
        return original(self, *args, **kwargs)
    seed = tf.identity(own)
    own.assign(seed + tf.constant([0, 1], seed.dtype))
    return seed


def _read_outside_of_graphs(call: BuildCall, original: Method, self: Any) -> Any:
    with tf.init_scope():
        return original(self)


def _install() -> None:
    for kind in (*CACHED, keras.Model, keras.Sequential, *functional_kinds()):
        _hook_constructor(kind)
    layer: Any = keras.layers.Layer
    adapting = ("Normalization", "Discretization", "TextVectorization", "StringLookup", "IntegerLookup")
    hooks: list[tuple[Any, str, Hook]] = [
        (layer, "__call__", _call),
        (layer, "add_loss", _add_loss),
        (layer, "get_weights", _read_outside_of_graphs),
        (KerasVariable, "assign", _assign),
        (keras.random.SeedGenerator, "next", _next_seed),
        (keras.Model, "load_weights", _once),
        (keras.Sequential, "add", _add),
        (keras.Sequential, "pop", _once),
        *((getattr(keras.layers, name), "adapt", _once) for name in adapting),
    ]
    for owner, name, hook in hooks:
        setattr(owner, name, _with_hook(getattr(owner, name), hook))
    layer.trainable = layer.trainable.setter(_with_hook(layer.trainable.fset, _once))
    layer.losses = property(_with_hook(layer.losses.fget, _losses), doc=layer.losses.__doc__)
    tell_of_uses(_note_use)


_install()
