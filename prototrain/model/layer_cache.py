"""Layers and variables that all calls of a model's `build` share.

`build` is called once eagerly, to create everything, and then traced for each tower, for training and for evaluation.
What the first call makes is kept by class, arguments and order; a later call gets the same objects where it would make
new ones. The hooks of `keras_hooks` ask the `BuildCall` of the present thread.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CellType, FunctionType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.checkpoint.state import describe_variable
from prototrain.checkpoint.values import random_state_kept
from prototrain.errors import ModelError
from prototrain.model.keras_hooks import (
    CACHED,
    TABLES,
    VariableValues,
    asking,
    keeping_changes,
    place_again,
    restoring_values,
)
from prototrain.step.variables import is_scratch
from prototrain.tf_private import (
    KerasVariable,
    call_by,
    forget_losses,
    functional_kinds,
    history,
    layers_within,
    own_weights,
)
from prototrain.towers import components, tower_index

Key = tuple[Any, ...]
"""What identifies an object: the id of the layer that makes it (0 for `build`), class, name, outline of arguments, and
the name scope within `build`."""

_EMPTY_CELL = CellType()
_ADDED = "keras.Sequential.add"

Objects = dict[Key, list[Any]]
"""The objects that the first call made; those of one key in the order of creation."""


class MissingVariableError(ModelError):
    """A later call of `build` asks for a variable that the first call did not create.

    Attributes:
        variable: its name.
    """

    def __init__(self, variable: str, made: str) -> None:
        super().__init__(
            f"build() asked for {variable}, but its first call {made}; it must make the same layers, with the same "
            "arguments, and the same variables in every call, for training and not"
        )
        self.variable = variable


class LayerCache:
    """The layers and variables of a model, by name.

    The first call of `build`, under `creating`, makes them; `adopt` adds variables that existed before. In every later
    call, under `sharing`, each Keras object (layer, metric, seed generator, optimizer), each lookup table and each
    `tf.Variable` that `build` makes is the one of the first call. A later call may leave objects out, such as layers
    that only training has, but it cannot add any with variables.

    Attributes:
        variables: by unique name, in the order of creation; TensorFlow's names without ``:0``.
        layers: the Keras layers that `build` makes or calls, by unique name.
        lasting: the names of variables that may outlast a trainer: they, or their layers, existed before.
        of_tower: by tower index, the variables that this tower uses instead of the seed states of these names.
    """

    def __init__(self) -> None:
        self.variables: dict[str, tf.Variable] = {}
        self.layers: dict[str, keras.layers.Layer] = {}
        self.lasting: list[str] = []
        self.of_tower: dict[int, dict[str, tf.Variable]] = {}
        self._objects: Objects = {}
        self._created: list[tf.Variable] = []
        self._weights: dict[int, Any] = {}  # Keras variables by the id of the tf.Variable that each holds
        self._thread = threading.local()  # towers are traced in threads
        self._held: set[str] = set()  # variables without a layer that are frozen for now
        self._flags: list[tuple[Any, bool]] = []  # what was trainable before `set_trainable`, outer layers first

    @contextmanager
    def creating(
        self, strategy: tf.distribute.Strategy | None = None, declare: Callable[..., dict[str, Any]] = dict
    ) -> Iterator[None]:
        """Create layers and variables, and restore afterwards what running on a batch has changed.

        What `build` assigns once, by `load_weights`, `set_weights` or `assign` of an array, stays.

        Args:
            strategy: places the variables; the present one by default. Only the variables are made in its scope: layers
                that use the other towers, such as synchronized batch normalization, cannot run there.
            declare: maps the arguments of a new variable to those that the strategy needs.
        """
        strategy = strategy if strategy is not None else tf.distribute.get_strategy()
        placing = False

        def take_over(layer: keras.layers.Layer) -> None:
            """Place the variables of a layer that existed before on the towers."""
            for variable in layer.variables:
                if not strategy.extended.variable_created_in_scope(variable.value):
                    place_again(variable)  # by way of `create`

        def create(make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
            nonlocal placing
            if placing:
                return make(**arguments)

            def place() -> tf.Variable:
                nonlocal placing
                placing = True
                try:
                    with strategy.scope():
                        variable = tf.Variable(**declare(**arguments))
                finally:
                    placing = False
                self.variables[_unique(base_name(variable), self.variables)] = variable
                self._created.append(variable)
                return variable

            return call.variable(arguments, place)

        with restoring_values() as before, tf.variable_creator_scope(create):
            call = BuildCall(self._objects, first=(take_over, before))
            with asking(call):
                yield
            call.end()

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Return the existing layers and variables instead of making new ones.

        Raises:
            ModelError: `build` asks for a variable that the first call did not create, leaves out a layer that cannot
                be told from one that it uses, or assigns weights in every step.
        """
        call = BuildCall(self._objects, seeds=self.of_tower.get(tower_index()))

        def given(make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
            def refuse() -> tf.Variable:
                name = "/".join(filter(None, (tf.get_current_name_scope(), arguments.get("name") or "Variable")))
                there = self.variables.get(name)
                other = "" if there is None else f"made it with other arguments, {describe_variable(there)}"
                raise MissingVariableError(name, other or "made no such variable")

            return call.variable(arguments, refuse)

        # Keras draws a seed for each initializer. A later call does not use them, and must not change what is drawn.
        with random_state_kept(), asking(call), tf.variable_creator_scope(given):
            yield
        call.end()
        call.check_left_out()
        self._thread.call = call

    def adopt(self, build: Callable[[Any], Any], inputs: Any) -> None:
        """Trace `build` once, sharing, and add the variables that it uses but has not created.

        These belong to layers that existed before the first call, such as attributes of a model. A model that cannot
        be called twice fails here, before a run writes anything.

        Args:
            build: called with one batch; what it returns are the graph's outputs.
            inputs: the specification of a batch, as `tf.data.Dataset.element_spec`.

        Raises:
            ModelError: as `sharing`; or two layers have one name.
        """

        def traced(batch: Any) -> Any:
            with self.sharing():
                return build(batch)

        graph = tf.function(traced, autograph=False).get_concrete_function(inputs).graph
        by_handle = {id(variable.handle): variable for variable in graph.variables}
        known = {id(part.handle) for variable in self._created for part in components(variable)}
        used = [by_handle[id(handle)] for handle in graph.external_captures if id(handle) in by_handle]  # in order
        before = [v for v in used if id(v.handle) not in known and not is_scratch(v)]
        self._name(self._thread.call.called, before)

    def _name(self, called: dict[int, Any], before: list[tf.Variable]) -> None:
        """Give all layers and variables their names.

        Args:
            called: the layers that `build` has called, by id.
            before: the variables that it uses and has not created.

        Raises:
            ModelError: `build` makes two layers of one name with a variable each.
        """
        made = {id(item): item for key, items in self._objects.items() if key[0] == 0 for item in items}
        named = [item for key, items in self._objects.items() if key[0] == 0 and key[2] for item in items]
        layers = {key: item for key, item in made.items() if isinstance(item, keras.layers.Layer)} | called
        for layer in layers.values():
            self.layers[_unique(layer.name, self.layers)] = layer
        for item in [*self.layers.values(), *made.values()]:
            for variable in [item] if isinstance(item, KerasVariable) else getattr(item, "variables", [item]):
                if isinstance(variable, KerasVariable):
                    self._weights.setdefault(id(variable.value), variable)

        prefixes = _model_names([item for item in named if isinstance(item, functional_kinds())])
        owners: dict[int, Any] = {}  # of each variable, the innermost layer that `build` gives a name to
        for layer in sorted((item for item in named if hasattr(item, "variables")), key=lambda one: len(one.variables)):
            for weight in layer.variables:
                owners.setdefault(id(weight.value), layer)
        # Layers from before come last, whether they were built in the first call or for an earlier trainer.
        outer = {id(v.value): v.value for key, layer in called.items() if key not in made for v in layer.variables}
        known = {id(variable): variable for variable in [*self._created, *before]}
        mine = [variable for variable in self._created if id(variable) not in outer]
        lasting = {key: known[key] for key in [*outer, *map(id, before)] if key in known}
        self.variables = {}
        for variable in [*mine, *lasting.values()]:
            wanted = "/".join(filter(None, (prefixes.get(id(variable)), base_name(variable))))
            name = _unique(wanted, self.variables)
            owner, first = owners.get(id(variable)), owners.get(id(self.variables.get(wanted)))
            if owner is not None and first is not None and owner is not first:
                raise ModelError(
                    f"build() makes two layers named {owner.name!r}, so there would be two of {wanted}; to share the "
                    "weights make the layer once and call it twice, otherwise give one of them another name (or a "
                    "tf.name_scope)"
                )
            self.variables[name] = variable
        self.lasting = [name for name, variable in self.variables.items() if id(variable) in lasting]
        paths = Counter(holder.path for holder in self._weights.values())
        for name, holder in self.holders.items():
            if isinstance(holder, KerasVariable) and paths[holder.path] > 1:
                call_by(holder, name)  # unlike Keras's path, it has the name scope

    # -- what Keras knows of the variables ----------------------------------------------------------------------------

    def keras_variable(self, variable: Any) -> Any:
        """The Keras variable that holds a variable, or the variable itself if no layer has it."""
        return self._weights.get(id(variable), variable)

    @property
    def holders(self) -> dict[str, Any]:
        """For each variable, by name, the Keras variable that holds it, or the variable itself."""
        return {name: self.keras_variable(variable) for name, variable in self.variables.items()}

    @property
    def trainable(self) -> dict[str, tf.Variable]:
        """The variables that are trainable, as their layers say at present."""
        found = [(name, v) for name, v in self.variables.items() if name not in self._held]
        return {name: v for name, v in found if v.trainable and self.keras_variable(v).trainable}

    def matching(self, regex: str) -> list[str]:
        """The names of the variables that a regular expression matches, or of whose layers it matches the name."""
        pattern = re.compile(regex)
        of_layers = {
            id(v.value) for name, layer in self.layers.items() if pattern.fullmatch(name) for v in layer.variables
        }

        def matches(name: str) -> bool:
            ends = [match.start() for match in re.finditer("/|$", name)]
            return any(pattern.fullmatch(name[:end]) for end in ends)

        return [name for name, variable in self.variables.items() if id(variable) in of_layers or matches(name)]

    def set_trainable(self, regex: str, value: bool) -> None:
        """Freeze or unfreeze the variables of `matching`, and the layers all of whose variables are among them."""
        names = self.matching(regex)
        chosen = {id(self.variables[name]) for name in names}
        layers = {id(layer): layer for root in self.layers.values() for layer in layers_within(root)}.values()
        holders = list(self._weights.values())
        if not self._flags:
            self._flags = [(part, part.trainable) for part in (*layers, *holders)]
        for layer in layers:
            if layer.variables and chosen.issuperset(id(variable.value) for variable in layer.variables):
                layer.trainable = value
        for holder in holders:
            if id(holder.value) in chosen and holder.value.trainable:
                holder.trainable = value
        free = {name for name in names if self.keras_variable(self.variables[name]) is self.variables[name]}
        self._held = self._held - free if value else self._held | free

    def reset_trainable(self) -> None:
        """Undo every `set_trainable`."""
        for part, flag in self._flags:
            part.trainable = flag
        self._flags, self._held = [], set()

    @property
    def frozen(self) -> set[int]:
        """The ids of all variables of layers that are not trainable at present, with their statistics."""
        layers = {id(layer): layer for root in self.layers.values() for layer in layers_within(root)}
        return {id(v.value) for layer in layers.values() if not layer.trainable for v in own_weights(layer)}

    def loss(self) -> tf.Tensor | None:
        """The sum of the layers' losses in the last call of `build` in this thread; a float32 scalar or None.

        These are the losses that layers have added and the regularizers of trainable weights, without those that
        `build` has read itself and so adds to its own loss.
        """
        call: BuildCall | None = getattr(self._thread, "call", None)
        losses = [] if call is None else call.losses_left([v for v in self._weights.values() if v.trainable])
        return tf.add_n([tf.cast(loss, tf.float32) for loss in losses]) if losses else None


@dataclass
class _Frame:
    """Code that is running: `build` itself, a layer's call, or code whose objects are not cached."""

    owner: int  # the id of a layer, or 0 for `build`
    is_ignored: bool = False
    counts: Counter[Key] = field(default_factory=Counter)


class BuildCall:
    """A call of `build` in progress; `keras_hooks` asks it what to do.

    Args:
        objects: those of the first call, which fills them.
        first: for the first call: a function that is called with each layer that `build` itself calls, before its first
            call; and the values to restore after it.
        seeds: by the name of a seed state, the variable that the present tower uses instead.

    Attributes:
        called: the layers that `build` itself has called, by id.
        variables: the `tf.Variable` objects that `build` or its layers have asked for.
        losses: tensors that layers have added.
        updates_metrics: whether assignments to the variables of metrics count.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        first: tuple[Callable[[Any], None], VariableValues] | None = None,
        seeds: Mapping[str, tf.Variable] | None = None,
    ) -> None:
        self._objects = objects
        self._first = first
        self._seeds = seeds or {}
        self._frames = [_Frame(0)]
        self._outer_scope = tf.get_current_name_scope()
        self._given: Any = None
        self._new: dict[int, Any] = {}
        self._taken: set[int] = set()  # ids of losses, and of weights whose regularizers, that `build` has read
        self.called: dict[int, Any] = {}
        self.variables: list[Any] = []
        self.losses: list[Any] = []
        self.updates_metrics = True

    @property
    def _in_layer(self) -> bool:
        return len(self._frames) > 1

    # -- objects ------------------------------------------------------------------------------------------------------

    def _name_scope(self) -> str:
        """The `tf.name_scope` within `build`, without the numbers that a graph adds to one that is entered again."""
        inner = tf.get_current_name_scope().removeprefix(self._outer_scope).strip("/")
        return re.sub(r"_\d+(?=/|$)", "", inner)

    def _find_or_make(self, key: Key, make: Callable[[], Any]) -> tuple[Any, bool]:
        """The next object of a key, and whether it is new."""
        frame = self._frames[-1]
        if frame.is_ignored:
            return make(), True
        key = (frame.owner, *key, "" if self._in_layer else self._name_scope())
        if self._first is None and key not in self._objects:  # control flow begins with another scope in a graph
            others = [other for other in self._objects if other[:-1] == key[:-1]]
            key = others[0] if len(others) == 1 else key
        made, number = self._objects.get(key, []), frame.counts[key]
        frame.counts[key] += 1
        if number < len(made):
            return made[number], False
        new = make()
        # An object that only a later call makes has no variables, and may hold tensors of that call's graph.
        if self._first is not None:
            self._objects.setdefault(key, []).append(new)
        return new, True

    def obtain(self, kind: type, args: tuple[Any, ...], kwargs: dict[str, Any], make: Callable[[], Any]) -> Any:
        """The object of the first call that stands for a new one of this class, or else a new one of `make`."""
        outline = _outline((args, kwargs), contents=issubclass(kind, TABLES))
        key = (f"{kind.__module__}.{kind.__qualname__}", kwargs.get("name"), outline)
        found, is_new = self._find_or_make(key, make)
        if is_new:
            self._new[id(found)] = found
        self._given = None if is_new else found
        return found

    def is_initialized(self, found: Any) -> bool:
        """Whether an object whose class is about to initialize it is of an earlier call; True once for each."""
        is_given, self._given = found is self._given, None
        return is_given

    def variable(self, arguments: Mapping[str, Any], make: Callable[[], tf.Variable]) -> tf.Variable:
        """The `tf.Variable` of the first call that stands for a new one, or else a new one of `make`.

        Args:
            arguments: of `tf.Variable`.
            make: makes it, or raises an error in a later call.
        """
        found, _ = self._find_or_make(("tf.Variable", arguments.get("name"), _shape(arguments)), make)
        self.variables.append(found)
        return found

    def note_added(self, model: keras.Sequential, layer: Any) -> None:
        """Check that the first call has added the same layer to a model.

        Raises:
            ModelError: it has added another one, or none.
        """
        layer = history(layer)[0][0] if isinstance(layer, keras.KerasTensor) else layer
        found, is_new = self._find_or_make((_ADDED, model.name, id(model)), lambda: layer)
        if found is not layer or (is_new and self.is_done(model)):
            raise _added_others(model.name)

    def check_left_out(self) -> None:
        """Raise a ModelError if an object with weights was left out that only the order tells from a used one."""
        for key, made in self._objects.items():
            left_out = made[self._frames[0].counts[key] :]
            if key[1] == _ADDED and 0 < len(left_out) < len(made):
                raise _added_others(key[2])
            weights = _floating(left_out[-1]) if key[0] == 0 and 0 < len(left_out) < len(made) else []
            if weights:
                raise ModelError(
                    f"build() left out {weights[0]}, which cannot be told from another variable of the same kind of "
                    "layer; give every layer and variable that is not in all calls, and those like it, a name of its "
                    "own"
                )

    # -- calls --------------------------------------------------------------------------------------------------------

    @contextmanager
    def inside(self, layer: Any) -> Iterator[None]:
        """A layer is called in this block: what is made in it belongs to the layer."""
        if not self._in_layer and id(layer) not in self.called:
            self.called[id(layer)] = layer
            if self._first is not None:
                take_over, _ = self._first
                with self.ignoring():
                    take_over(layer)
        with self._frame(_Frame(id(layer))):
            yield

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """An object is initialized or built in this block, which no later call repeats."""
        with self._frame(_Frame(0, is_ignored=True)), keeping_changes():
            yield

    @contextmanager
    def _frame(self, frame: _Frame) -> Iterator[None]:
        self._frames.append(frame)
        try:
            yield
        finally:
            self._frames.pop()

    def end(self) -> None:
        """Remove this call's losses from the layers."""
        for layer in self.called.values():
            forget_losses(layer)

    # -- changes that happen once -------------------------------------------------------------------------------------

    def is_done(self, changed: Any) -> bool:
        """Whether the first call has made a one-time change of this object, such as building a layer."""
        return not (self._first is not None or self._in_layer or id(changed) in self._new)

    def assign(self, variable: Any, value: Any, assign: Callable[[Any, Any], Any]) -> Any:
        """Let `assign` set a Keras variable, unless the first call has set it once and for all.

        Raises:
            ModelError: the assignment would happen in every step.
        """
        if not self.updates_metrics and variable.value.synchronization == tf.VariableSynchronization.ON_READ:
            return value
        is_computed = tf.is_tensor(value) or isinstance(value, KerasVariable)
        if self._in_layer or (is_computed and (self._first is not None or not variable.trainable)):
            return assign(variable, value)
        if is_computed:
            raise ModelError(
                f"build() assigns a computed value to the trainable variable {variable.path}, which would happen in "
                "every step; assign a NumPy array, which is taken over once, or change it in a callback or in the "
                "trainer's train_step"
            )
        if self._first is None:
            return value
        with keeping_changes():
            assigned = assign(variable, value)
        _, before = self._first
        for part in components(variable.value):
            before.forget(part)
        return assigned

    # -- losses and seeds ---------------------------------------------------------------------------------------------

    def note_taken(self, layer: Any, losses: list[Any]) -> None:
        """The losses of a layer were read: if `build` did it, `build` takes care of them."""
        if not self._in_layer:
            self._taken |= {id(loss) for loss in losses} | {id(weight) for weight in layer.trainable_weights}

    def losses_left(self, weights: list[Any]) -> list[Any]:
        """The losses of layers, and of the regularizers of these weights, that `build` does not take care of."""
        found = [loss for loss in self.losses if id(loss) not in self._taken]
        return found + [w.regularizer(w) for w in weights if w.regularizer is not None and id(w) not in self._taken]

    def take_losses(self) -> list[Any]:
        """The losses of layers that `build` has called so far; `build` takes care of them from now on."""
        weights = {id(w): w for layer in self.called.values() for w in layer.trainable_weights}
        found = self.losses_left(list(weights.values()))
        self._taken |= {*map(id, self.losses), *weights}
        return found

    def trainable_variables(self) -> list[Any]:
        """The trainable variables of layers that `build` has called so far, and those that it has made itself."""
        weights = [weight for layer in self.called.values() for weight in layer.weights]
        trained = {id(weight) for layer in self.called.values() for weight in layer.trainable_weights}
        found = {id(weight.value): weight.value for weight in weights if id(weight) in trained}
        of_layers = {id(weight.value) for weight in weights}
        found |= {id(made): made for made in self.variables if made.trainable and id(made) not in of_layers}
        return list(found.values())

    def seed_state(self, state: Any) -> Any:
        """The variable that the present tower uses instead of the state of a `SeedGenerator`, or None."""
        return self._seeds.get(base_name(state)) if self._seeds else None


def _added_others(name: str) -> ModelError:
    return ModelError(
        f"build() does not add the same layers to the Sequential {name!r} in every call; give them as a list instead, "
        "keras.Sequential([...])"
    )


def base_name(variable: Any) -> str:
    """A variable's name without the output number, such as ``fc0/kernel``."""
    return str(variable.name).split(":")[0]


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    unique, number = name, 0
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    return unique


def _model_names(models: list[Any]) -> dict[int, str]:
    """The names of the functional models that a variable is in, by its id, with slashes.

    Keras makes these variables when a layer is called, before there is a model. A layer of several models gets the
    name of the first.
    """
    found: dict[int, str] = {}

    def walk(model: Any, path: str) -> None:
        for layer in model.layers:
            longer = f"{path}/{layer.name}" if id(layer) in mine else path
            if isinstance(layer, functional_kinds()):
                walk(layer, longer)
            else:
                for weight in layer.variables:
                    found.setdefault(id(weight.value), path)

    mine = set(map(id, models))
    inner = {id(layer) for model in models for layer in model.layers}
    for model in models:
        if id(model) not in inner:
            walk(model, model.name)
    return found


def _floating(made: Any) -> list[str]:
    """The names of an object's variables of floats."""
    held: list[Any] = [made] if isinstance(made, (KerasVariable, tf.Variable)) else getattr(made, "variables", [])
    return [getattr(v, "path", None) or base_name(v) for v in held if tf.as_dtype(v.dtype).is_floating]


def _shape(arguments: Mapping[str, Any]) -> str | None:
    """The shape of a variable to be made; None if only a call of its initializer would tell."""
    value: Any = arguments.get("initial_value")
    return None if callable(value) else str(tf.TensorShape(value.shape if hasattr(value, "shape") else np.shape(value)))


def _outline(value: Any, contents: bool, within: tuple[Any, ...] = ()) -> Any:
    """The part of an argument that is the same in every call of `build`.

    Args:
        value: the argument.
        contents: whether arrays are told apart by their contents. Those of a lookup table are; initial weights may be
            drawn again in each call.
        within: the functions whose variables are looked at.
    """
    if value is None or isinstance(value, (bool, bytes, complex, float, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_outline(item, contents, within) for item in value)
    if isinstance(value, Mapping):
        return tuple((key, _outline(item, contents, within)) for key, item in value.items())
    if isinstance(value, (*CACHED, tf.Variable)):
        return id(value)
    if isinstance(value, keras.KerasTensor):
        return tuple(_outline(step, contents, within) for step in history(value))
    if isinstance(value, FunctionType) and value not in within:
        # A layer keeps the function of the first call: one that sees other values is another function.
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY_CELL]
        seen = [*cells, value.__defaults__, value.__kwdefaults__]
        return value.__qualname__, _outline(seen, contents, (*within, value))
    if isinstance(value, partial):
        return _outline([value.func, value.args, value.keywords], contents, within)
    if tf.is_tensor(value):
        parts = [tf.get_static_value(part) for part in tf.nest.flatten(value, expand_composites=True)]
        return type(value).__qualname__ if any(part is None for part in parts) else tuple(map(_digest, parts))
    if contents and isinstance(value, np.ndarray):
        return _digest(value)
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def _digest(array: Any) -> Any:
    array = np.asarray(array)
    held = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return str(array.dtype), array.shape, hashlib.sha256(held).hexdigest()
