"""Where Keras asks the call of `build` that is under way.

Keras has no notion of a function that is called again and means the same layers. So its constructors ask here first,
and get the object that an earlier call made in their place. The hooks are put in once, when this module is imported;
in a thread where no call of `build` is under way they do nothing.
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

if TYPE_CHECKING:
    from prototrain.model.build_call import BuildCall

Method = Callable[..., Any]

STATEFUL = (
    keras.layers.Layer,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
    KerasVariable,
)
"""The kinds of Keras objects that have variables, and so are made once."""


_thread = threading.local()  # towers are traced in threads of their own


@contextmanager
def listening(listener: BuildCall) -> Iterator[None]:
    """Let a call of `build` hear what Keras does in this thread."""
    outer = present_call()
    _thread.listener = listener
    try:
        yield
    finally:
        _thread.listener = outer


@contextmanager
def calling(layer: Any) -> Iterator[None]:
    """Let what happens in this thread be that layer's own concern, as in its call: making objects, assigning."""
    listener = present_call()
    with nullcontext() if listener is None else listener.inside(layer):
        yield


def automatic_name(layer: Any) -> str | None:
    """What stands before the number in a layer's name, if it is one that Keras gives where there is none, else None."""
    kind = snake_case(type(layer).__name__)
    return kind if re.fullmatch(rf"{kind}(_\d+)?", layer.name) else None


def has_automatic_name(layer: Any) -> bool:
    """Whether a layer's name is one that Keras gives if there is none."""
    return automatic_name(layer) is not None


def place_again(variable: Any) -> None:
    """Let a Keras variable hold a new `tf.Variable` with the value of the old one, as the present strategy makes it."""
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


# -- the hooks --------------------------------------------------------------------------------------------------------


def present_call() -> BuildCall | None:
    """The call of `build` that is under way in this thread, or None."""
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
        found = listener.earlier(cls, args, kwargs)
        if found is not None:
            return found
        _thread.constructing = True
        try:
            made = make()
        finally:
            _thread.constructing = False
        if isinstance(made, keras.layers.Layer):
            made.build = _built_once(made, made.build)
        _hook_initialiser(type(made))
        listener.note_new(made)
        return made

    new.__signature__ = inspect.signature(kind.__init__)  # type: ignore[attr-defined,misc]
    kind.__new__ = new  # type: ignore[method-assign,assignment]


def _hook_initialiser(kind: type) -> None:
    """Let a class not initialise an object a second time, and say when the first time is over."""
    original = kind.__init__  # type: ignore[misc]
    if hasattr(original, "asks_first"):
        return

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        listener = present_call()
        if listener is None:
            original(self, *args, **kwargs)
        elif not listener.is_initialised(self):
            with listener.aside():
                original(self, *args, **kwargs)

    initialise.asks_first = True  # type: ignore[attr-defined]
    initialise.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    kind.__init__ = initialise  # type: ignore[misc]


def _built_once(layer: Any, build: Method) -> Method:
    @functools.wraps(build)
    def build_once(*args: Any, **kwargs: Any) -> Any:
        listener = present_call()
        if listener is None:
            return build(*args, **kwargs)
        if listener.is_done(layer):
            return None
        with listener.aside():
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


_hook_keras()
