"""Calls of a model's `build`, and hooks in Keras and TensorFlow that let repeated calls share layers.

In Keras, calling a function again creates new layers. Here, Keras constructors ask the thread's current `BuildCall`
first and return the object of the first call, matched by class, arguments and order. Variables report each use, so that
changes of the first call can be undone. The hooks are installed when this module is imported, and do nothing in a
thread without a call of `build`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import CellType, FunctionType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.step.trace import tower_trace
from prototrain.tf_private import (
    Functional,
    KerasVariable,
    forget_losses,
    held_by,
    history,
    in_stateless_scope,
    raw_handle,
    watch_uses,
)
from prototrain.towers import components, seed_of_tower, tower_index

_TABLES = (tf.lookup.KeyValueTensorInitializer, tf.lookup.TextFileInitializer, tf.lookup.StaticHashTable)
"""Lookup tables and their initializers; a table made in a traced call would be filled in every step."""

CACHED = (
    keras.layers.Layer,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
    KerasVariable,
    *_TABLES,
)
"""Classes whose objects are created once."""


class Key(NamedTuple):
    """The identity of an object that `build` makes."""

    kind: str  # the class
    name: str | None
    outline: Any  # of the arguments
    scope: str  # the name scope within `build`


Objects = dict[Key, list[Any]]
"""The objects of the first call by key, in the order of creation."""

_ADDED = "keras.Sequential.add"
_EMPTY_CELL = CellType()
_thread = threading.local()  # towers are traced in threads


def present_call() -> BuildCall | None:
    """Return this thread's call of `build` in progress, or None."""
    call: BuildCall | None = getattr(_thread, "call", None)
    return call


@contextmanager
def setting(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for the duration of a block."""
    outer = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, outer)


@contextmanager
def calling(layer: Any) -> Iterator[None]:
    """Context manager that treats assignments of this thread as part of a layer's call."""
    call = present_call()
    with nullcontext() if call is None else call.inside(layer):
        yield


class BuildCall:
    """A call of `build` in progress.

    The first call fills `objects`. `take_over` is called with each layer that `build` itself calls, before the layer's
    first call.
    """

    def __init__(
        self, objects: Objects, *, is_first: bool = False, take_over: Callable[[Any], object] = lambda layer: None
    ) -> None:
        self._objects = objects
        self._is_first = is_first
        self._take_over = take_over
        self._outer_scope = tf.get_current_name_scope()
        self._counts: Counter[Key] = Counter()  # of the objects that this call has asked for
        self._is_within = False  # the call, `__init__` or `build` of a layer, whose objects and changes are its own
        self._is_kept = False  # within an `__init__` or `build`, which no later call repeats
        self._new: dict[int, Any] = {}
        self._before: dict[int, tuple[Any, Any]] = {}  # variables and their values, by the id of the handle
        self.taken: set[int] = set()  # ids of the losses, and of regularized weights, that `build` has read
        self.called: dict[int, Any] = {}  # the layers that `build` itself has called, by id
        self.variables: list[Any] = []  # the `tf.Variable` objects that `build` or its layers have requested
        self.losses: list[Any] = []  # that layers have added
        self.updates_metrics: bool | None = None  # if None, updates by `build` itself are errors

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager that activates the hooks, and checks that the call made the same objects as the first.

        The first call restores the variables that running on a batch has changed.
        """
        try:
            with setting(_thread, "call", self):
                yield
        finally:
            for variable, value in self._before.values():
                variable.assign(value)
        for layer in self.called.values():
            forget_losses(layer)
        self._check_left_out()

    @contextmanager
    def inside(self, layer: Any) -> Iterator[None]:
        """Context manager around a layer's call."""
        if not self._is_within and id(layer) not in self.called:
            self.called[id(layer)] = layer
            with self.keeping():
                self._take_over(layer)
        with setting(self, "_is_within", True):
            yield

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Context manager around an `__init__` or `build` that no later call repeats; its changes are kept."""
        with setting(self, "_is_within", True), setting(self, "_is_kept", True):
            yield

    def _find_or_make(self, kind: str, name: Any, outline: Any, make: Callable[[], Any]) -> tuple[Any, bool]:
        """Return the next object with this class, name and outline of the arguments, and whether it is new."""
        if self._is_within:
            return make(), True
        inner = tf.get_current_name_scope().removeprefix(self._outer_scope).strip("/")
        # A graph numbers a scope that is entered again.
        key = Key(kind, name, outline, re.sub(r"_\d+(?=/|$)", "", inner))
        if not self._is_first and key not in self._objects:  # in a graph, control flow has another scope
            others = [other for other in self._objects if other[:-1] == key[:-1]]
            key = others[0] if len(others) == 1 else key
        made, number = self._objects.get(key, []), self._counts[key]
        self._counts[key] += 1
        if number < len(made):
            return made[number], False
        new = make()
        # An object that only a later call makes has no variables, and may hold tensors of its graph.
        if self._is_first:
            self._objects.setdefault(key, []).append(new)
        return new, True

    def obtain(self, kind: type, args: tuple[Any, ...], kwargs: dict[str, Any], make: Callable[[], Any]) -> Any:
        """Return the object that the first call made with the same arguments, or a new one from `make`."""
        outline = None if self._is_within else _outline((args, kwargs), issubclass(kind, _TABLES))
        found, is_new = self._find_or_make(f"{kind.__module__}.{kind.__qualname__}", kwargs.get("name"), outline, make)
        if is_new:
            self._new[id(found)] = found
        elif kind is keras.layers.Lambda:  # the variables of the first function may have other values now
            found.function = kwargs.get("function", *args[:1])
        return found

    def is_new(self, made: Any) -> bool:
        """Return whether this call has made an object."""
        return id(made) in self._new

    def variable(self, arguments: Mapping[str, Any], make: Callable[[], tf.Variable]) -> tf.Variable:
        """Return the `tf.Variable` that the first call made with the same arguments, or the result of `make`."""
        value: Any = arguments.get("initial_value")
        # The shape of an initializer's value is unknown without calling it.
        shape = None if callable(value) else tf.TensorShape(value.shape if hasattr(value, "shape") else np.shape(value))
        found, _ = self._find_or_make("tf.Variable", arguments.get("name"), str(shape), make)
        self.variables.append(found)
        return found

    def adds(self, model: keras.Sequential, layer: Any) -> bool:
        """Return whether to add a layer to a Sequential; later calls reuse the model and must add the same layers."""
        layer = history(layer)[0][0] if isinstance(layer, keras.KerasTensor) else layer
        found, is_new = self._find_or_make(_ADDED, model.name, id(model), lambda: layer)
        if found is not layer or (is_new and self.is_done(model)):
            raise _added_others(model.name)
        return not self.is_done(model)

    def _check_left_out(self) -> None:
        """Raise a ModelError if the call left out an object with weights that only its order identifies."""
        for key, made in self._objects.items():
            left_out = made[self._counts[key] :]
            if not 0 < len(left_out) < len(made):
                continue
            if key.kind == _ADDED:
                raise _added_others(str(key.name))
            last = left_out[-1]
            held = [last] if isinstance(last, (KerasVariable, tf.Variable)) else getattr(last, "variables", [])
            weights = [variable for variable in held if tf.as_dtype(variable.dtype).is_floating]
            if weights:
                name = getattr(weights[0], "path", None) or base_name(weights[0])
                raise ModelError(
                    f"build() left out {name}, which has no unique name; name all layers and variables of this kind, "
                    "since not every call creates all of them"
                )

    def is_done(self, changed: Any) -> bool:
        """Return whether the first call has made a one-time change of this object, such as building a layer."""
        return not (self._is_first or self._is_within or self.is_new(changed))

    def assign(self, variable: Any, value: Any, assign: Callable[[Any, Any], Any]) -> Any:
        """Assign a value to a Keras variable, unless it is a one-time assignment of the first call."""
        held = held_by(variable)
        if held.synchronization == tf.VariableSynchronization.ON_READ:  # the variable of a metric
            if self.updates_metrics is False:
                return value
            if self.updates_metrics is None and not self._is_within:
                name = variable.path.rpartition("/")[0]
                raise ModelError(
                    f"build() updates the Keras metric {name}, which would add up batches of training and validation; "
                    "return the value of the batch, or use KerasMetric in an InferenceRunner"
                )
        is_computed = tf.is_tensor(value) or isinstance(value, KerasVariable)
        if self._is_within or (is_computed and (self._is_first or not variable.trainable)):
            return assign(variable, value)
        if is_computed:
            raise ModelError(
                f"build() assigns a computed value to the trainable variable {variable.path}, which would happen in "
                "every step; assign a NumPy array, which is taken over once, or change it in a callback or in the "
                "trainer's train_step"
            )
        if not self._is_first:
            return value
        with self.keeping():
            assigned = assign(variable, value)
        for part in components(held):
            self._before.pop(id(raw_handle(part)), None)  # keep the assigned value
        return assigned

    def note_use(self, variable: Any) -> None:
        """Save the value of a variable before its first use in the first call.

        A layer may update a `tf.Variable` that Keras does not know, and an op may change the state of a random
        generator. In each case, Python code reads the variable's handle first, which calls this method.
        """
        handle = raw_handle(variable)  # the property would call this method again
        if not self._is_first or id(handle) in self._before or self._is_kept:
            return
        with tf.init_scope():
            # A variable that is being created or initialized has no value yet.
            if tf.executing_eagerly() and hasattr(handle, "numpy") and tf.raw_ops.VarIsInitializedOp(resource=handle):
                # A tensor keeps its value; TensorFlow copies only a variable that changes.
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
                self._before[id(handle)] = (variable, value)

    def note_taken(self, layer: Any, losses: list[Any]) -> None:
        """Record that a layer's losses were read; if `build` itself reads them, it adds them to its own loss."""
        if not self._is_within:
            self.taken |= {id(loss) for loss in losses} | {id(weight) for weight in layer.trainable_weights}

    def losses_left(self, weights: list[Any]) -> list[Any]:
        """Return the losses of layers and of the weights' regularizers that `build` has not read."""
        found = [loss for loss in self.losses if id(loss) not in self.taken]
        return found + [w.regularizer(w) for w in weights if w.regularizer is not None and id(w) not in self.taken]


def base_name(variable: Any) -> str:
    """Return a variable's name without the output number, such as ``fc0/kernel``."""
    return str(variable.name).split(":")[0]


def _added_others(name: str) -> ModelError:
    return ModelError(
        f"build() does not add the same layers to the Sequential {name!r} in every call; give them as a list instead, "
        "keras.Sequential([...])"
    )


def _outline(value: Any, has_contents: bool, within: tuple[Any, ...] = ()) -> Any:
    """Return a hashable outline of an argument that is the same in every call of `build`.

    Only lookup tables need the contents of arrays: initial weights may be drawn again in each call. `within` are the
    functions that contain the argument.
    """
    if value is None or isinstance(value, (bool, bytes, complex, float, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_outline(item, has_contents, within) for item in value)
    if isinstance(value, Mapping):
        return tuple((key, _outline(item, has_contents, within)) for key, item in value.items())
    if isinstance(value, (*CACHED, tf.Variable)):
        return id(value)
    if isinstance(value, keras.KerasTensor):
        return tuple(_outline(step, has_contents, within) for step in history(value))
    if isinstance(value, FunctionType) and value not in within:
        # A layer keeps the function of the first call, so a function with other closure values is a different one.
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY_CELL]
        seen = [*cells, value.__defaults__, value.__kwdefaults__]
        return value.__qualname__, _outline(seen, has_contents, (*within, value))
    if isinstance(value, partial):
        return _outline([value.func, value.args, value.keywords], has_contents, within)
    if tf.is_tensor(value):
        parts = [tf.get_static_value(part) for part in tf.nest.flatten(value, expand_composites=True)]
        return type(value).__qualname__ if any(part is None for part in parts) else tuple(map(_digest, parts))
    if has_contents and isinstance(value, np.ndarray):
        return _digest(value)
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def _digest(array: Any) -> Any:
    array = np.asarray(array)
    held = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return str(array.dtype), array.shape, hashlib.sha256(held).hexdigest()


def _hook_constructor(kind: type) -> None:
    original: Any = kind.__new__

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        def plain() -> Any:
            return object.__new__(cls) if original is object.__new__ else original(cls, *args, **kwargs)

        def hooked() -> Any:
            made = plain()
            if isinstance(made, keras.layers.Layer):
                made.build = _with_hook(made.build, partial(_build, made))
            _hook_initializer(type(made))
            return made

        call = present_call()
        if call is None or getattr(_thread, "constructing", False):  # constructors call base constructors
            return plain()
        with setting(_thread, "constructing", True):
            return call.obtain(cls, args, kwargs, hooked)

    setattr(new, "__signature__", inspect.signature(kind.__init__))  # type: ignore[misc]  # noqa: B010
    kind.__new__ = new  # type: ignore[method-assign,assignment]


def _hook_initializer(kind: type) -> None:
    """Make a class initialize each object only once."""
    if not hasattr(kind.__init__, "asks_first"):  # type: ignore[misc]
        method = _with_hook(kind.__init__, _initialize)  # type: ignore[misc]
        method.asks_first = True
        kind.__init__ = method  # type: ignore[misc]


def _initialize(call: BuildCall, original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    if call.is_new(self):
        with call.keeping():
            original(self, *args, **kwargs)


def _build(layer: Any, call: BuildCall, original: Any, *args: Any, **kwargs: Any) -> Any:
    if call.is_done(layer):
        return None
    with call.keeping():
        return original(*args, **kwargs)


def _with_hook(original: Any, hook: Callable[..., Any]) -> Any:
    """Wrap a method to call `hook(call, original, ...)` while this thread is in a call of `build`."""

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        call = present_call()
        return original(*args, **kwargs) if call is None else hook(call, original, *args, **kwargs)

    setattr(method, "__signature__", inspect.signature(original))  # noqa: B010 - Keras reads it
    return method


def _once(call: BuildCall, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    return None if call.is_done(self) else original(self, *args, **kwargs)


def _add(call: BuildCall, original: Any, self: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    if call.adds(self, layer):
        original(self, layer, *args, **kwargs)


def _call(call: BuildCall, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    with call.inside(self):
        return original(self, *args, **kwargs)


def _assign(call: BuildCall, original: Any, self: Any, value: Any) -> Any:
    return original(self, value) if in_stateless_scope() else call.assign(self, value, original)


def _add_loss(call: BuildCall, original: Any, self: Any, loss: Any) -> None:
    original(self, loss)
    if not in_stateless_scope():
        call.losses += keras.tree.flatten(loss)


def _losses(call: BuildCall, original: Any, self: Any) -> Any:
    found = original(self)
    call.note_taken(self, found)
    return found


def _get_weights(call: BuildCall, original: Any, self: Any) -> Any:
    with tf.init_scope():  # read the arrays once, outside of the traced graph
        return original(self)


def _draw_per_tower(original: Any) -> Any:
    """Wrap `SeedGenerator.next` to return another seed on each tower, while a step or `build` runs."""

    @functools.wraps(original)
    def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
        seed = original(self, *args, **kwargs)
        return seed if present_call() is None and tower_trace() is None else seed_of_tower(seed, tower_index())

    return draw


def _note_use(variable: Any) -> None:
    call = present_call()
    if call is not None:
        call.note_use(variable)


def _install() -> None:
    for kind in (*CACHED, keras.Model, keras.Sequential, Functional):
        _hook_constructor(kind)
    layer: Any = keras.layers.Layer
    adapting = ("Normalization", "Discretization", "TextVectorization", "StringLookup", "IntegerLookup")
    hooks: list[tuple[Any, str, Callable[..., Any]]] = [
        (layer, "__call__", _call),
        (layer, "add_loss", _add_loss),
        (layer, "get_weights", _get_weights),
        (KerasVariable, "assign", _assign),
        (keras.Model, "load_weights", _once),
        (keras.Sequential, "add", _add),
        (keras.Sequential, "pop", _once),
        *((getattr(keras.layers, name), "adapt", _once) for name in adapting),
        *((getattr(keras.layers, name), "enable_lora", _once) for name in ("Dense", "EinsumDense", "Embedding")),
    ]
    for owner, name, hook in hooks:
        setattr(owner, name, _with_hook(getattr(owner, name), hook))
    layer.trainable = layer.trainable.setter(_with_hook(layer.trainable.fset, _once))
    layer.losses = property(_with_hook(layer.losses.fget, _losses), doc=layer.losses.__doc__)
    keras.random.SeedGenerator.next = _draw_per_tower(keras.random.SeedGenerator.next)
    watch_uses(_note_use)


_install()
