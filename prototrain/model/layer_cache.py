"""Layers and variables that all calls of a model's `build` share.

`build` is called once eagerly, to create everything, and then traced for each tower, for training and for evaluation.
The Keras objects that the first call makes are kept by class, arguments and order; a later call gets the same objects
where it would make new ones. `keras_hooks` asks the `BuildCall` of the present thread.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from prototrain.checkpoint.random import random_state_kept
from prototrain.checkpoint.state import describe_variable
from prototrain.errors import ModelError
from prototrain.model.keras_hooks import (
    STATEFUL,
    VariableValues,
    has_automatic_name,
    listening,
    noting,
    place_again,
    restoring_values,
)
from prototrain.private_api.graphs import passing_graph
from prototrain.private_api.of_keras import (
    KerasVariable,
    call_by,
    forget_losses,
    functional_kinds,
    layers_within,
    made_by,
    own_weights,
)
from prototrain.step.variables import is_scratch
from prototrain.towers import components, tower_index

_ASSIGNS = re.compile(r"Assign(Add|Sub)?VariableOp|ResourceScatter\w*")

Key = tuple[Any, ...]
"""What identifies an object: the layer that makes it (0 for `build` itself), name scope, class, outline of args."""

Objects = dict[Key, list[Any]]
"""The objects that the first call made; those of one key in the order of creation."""


class MissingVariableError(ModelError):
    """A later call of `build` asks for a variable that the first call did not create.

    Attributes:
        variable: its name.
    """

    def __init__(self, variable: str, text: str) -> None:
        super().__init__(text)
        self.variable = variable


class LayerCache:
    """The layers and variables of a model, by name.

    The first call of `build`, under `creating`, makes them; `adopt` adds variables that existed before. In every later
    call, under `sharing`, each Keras object (layer, metric, seed generator, optimizer) and each `tf.Variable` that
    `build` makes is the one of the first call. A later call may leave objects out, such as layers that only training
    has, but it cannot add any with variables.

    Attributes:
        variables: by unique name, in the order of creation; TensorFlow's names without ``:0``.
        of_tower: by tower index, the variables that this tower uses instead of the seed states of these names.
        layers: the Keras layers that `build` makes or calls, by unique name.
    """

    def __init__(self) -> None:
        self.variables: dict[str, tf.Variable] = {}
        self._wanted: dict[str, str] = {}  # the names before they were made unique
        self.of_tower: dict[int, dict[str, tf.Variable]] = {}
        self.layers: dict[str, keras.layers.Layer] = {}
        self._objects: Objects = {}
        self._created: list[tf.Variable] = []
        self._of_lasting_layers: set[int] = set()
        self._weights: dict[int, Any] = {}  # Keras variables by the id of the tf.Variable that each holds
        self._thread = threading.local()  # towers are traced in threads

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
            placing = True
            try:
                with strategy.scope():
                    variable = tf.Variable(**declare(**arguments))
            finally:
                placing = False
            self._add(variable)
            self._created.append(variable)
            call.variables.append(variable)
            return variable

        with restoring_values() as before, tf.variable_creator_scope(create):
            call = BuildCall(self._objects, take_over, before=before)
            with listening(call):
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
        given = _GivenVariables(self._created, call)
        # Keras draws a seed for each initializer. A later call does not use them, and must not change what is drawn.
        with random_state_kept(), listening(call), noting(call), tf.variable_creator_scope(given):
            yield
        call.end()
        call.check_left_out()
        given.check_left_out()
        self._thread.call = call

    def adopt(self, build: Callable[[Any], Any], inputs: Any) -> Any:
        """Trace `build` once, sharing, and add the variables that it uses but has not created.

        These belong to layers that existed before the first call, such as attributes of a model. A model that cannot
        be called twice fails here, before a run writes anything.

        Args:
            build: called with one batch; what it returns are the graph's outputs.
            inputs: the specification of a batch, as `tf.data.Dataset.element_spec`.

        Returns:
            the traced graph.

        Raises:
            ModelError: as `sharing`; or two layers have one name.
        """

        def traced(batch: Any) -> Any:
            with self.sharing():
                return build(batch)

        graph = tf.function(traced, autograph=False).get_concrete_function(inputs).graph
        by_handle = {id(variable.handle): variable for variable in graph.variables}
        known = {id(part.handle) for variable in self._created for part in components(variable)}
        for handle in map(id, graph.external_captures):  # in the order of use
            if handle in by_handle and handle not in known and not is_scratch(by_handle[handle]):
                self._add(by_handle[handle])
        self._find_layers(self._thread.call)
        self._check_assignments(self._thread.call, graph)
        return graph

    # -- what Keras knows of the variables ----------------------------------------------------------------------------

    def keras_variable(self, variable: Any) -> Any:
        """The Keras variable that holds a variable, or the variable itself if no layer has it."""
        return self._weights.get(id(variable), variable)

    @property
    def trainable(self) -> dict[str, tf.Variable]:
        """The variables that are trainable, as their layers say at present."""
        found = self.variables.items()
        return {name: v for name, v in found if v.trainable and self.keras_variable(v).trainable}

    @property
    def outlasting(self) -> list[str]:
        """The names of variables that may outlast a trainer: they, or their layers, existed before the first call."""
        created = set(map(id, self._created))
        found = self.variables.items()
        return [name for name, v in found if id(v) not in created or id(v) in self._of_lasting_layers]

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
        if call is None:
            return None
        weights = [v for v in self._weights.values() if v.trainable and v.regularizer is not None]
        losses = [loss for loss in call.losses if id(loss) not in call.taken]
        losses += [v.regularizer(v) for v in weights if id(v) not in call.taken]
        return tf.add_n([tf.cast(loss, tf.float32) for loss in losses]) if losses else None

    def _find_layers(self, call: BuildCall) -> None:
        made = [item for key, items in self._objects.items() if key[0] == 0 for item in items]
        layers = {id(item): item for item in made if isinstance(item, keras.layers.Layer)} | call.called
        for layer in layers.values():
            self.layers[_unique(layer.name, self.layers)] = layer
        for item in [*self.layers.values(), *made]:
            for variable in [item] if isinstance(item, KerasVariable) else getattr(item, "variables", [item]):
                if isinstance(variable, KerasVariable):
                    self._weights.setdefault(id(variable.value), variable)
        mine = set(map(id, made))
        lasting = [layer for layer in call.called.values() if id(layer) not in mine]
        self._of_lasting_layers = {id(variable.value) for layer in lasting for variable in layer.variables}
        self._prefix_names(made)
        self._check_names()
        paths = Counter(holder.path for holder in self._weights.values())
        for name, variable in self.variables.items():
            holder = self.keras_variable(variable)
            if holder is not variable and paths[holder.path] > 1:
                call_by(holder, name)  # unlike Keras's path, it has the name scope

    def _prefix_names(self, made: list[Any]) -> None:
        """Put the names of functional models that `build` makes ahead of those of their variables.

        Keras makes these variables when a layer is called, before there is a model. A layer of several models gets the
        name of the first.
        """
        models: list[Any] = [
            item for item in made if isinstance(item, functional_kinds()) and not has_automatic_name(item)
        ]
        inside: dict[int, Any] = {}
        for model in models:
            for layer in model.layers:
                inside.setdefault(id(layer), model)
        prefixes: dict[int, str] = {}
        for model in models:
            for layer in model.layers:
                if isinstance(layer, functional_kinds()) or inside[id(layer)] is not model:
                    continue
                names, outer = [], inside.get(id(layer))
                while outer is not None and outer.name not in names:
                    names.append(outer.name)
                    outer = inside.get(id(outer))
                prefixes |= {id(weight.value): "/".join(reversed(names)) for weight in layer.variables}
        variables, self.variables = list(self.variables.values()), {}
        for variable in variables:
            self._add(variable, prefixes.get(id(variable), ""))

    def _check_names(self) -> None:
        """Raise a ModelError if `build` makes two layers of one name with a variable each."""
        layers = self.layers.values()
        owners = {id(v.value): layer for layer in layers for v in own_weights(layer)}
        named = {id(item) for key, items in self._objects.items() if _has_name(key) for item in items}
        for layer in layers:  # variables of inner layers that `build` has not made itself
            for weight in layer.weights:
                owners.setdefault(id(weight.value), layer)
        for name, variable in self.variables.items():
            base, owner = self._wanted[name], owners.get(id(variable))
            first = owners.get(id(self.variables.get(base)))
            if owner is None or first is None or owner is first or name == base:
                continue
            if has_automatic_name(owner) and id(owner) not in named:
                continue
            raise ModelError(
                f"build() makes two layers named {owner.name!r}, so there would be two of {base}; to share the weights "
                f"make the layer once and call it twice, otherwise give one of them another name (or a tf.name_scope)"
            )

    def _check_assignments(self, call: BuildCall, graph: Any) -> None:
        """Raise a ModelError if `build` itself assigns a trainable `tf.Variable`; layers may assign their own."""
        of_layers = {*self._weights, *call.used_by_layers}
        names = {
            id(v.handle): name
            for name, v in self.trainable.items()
            if of_layers.isdisjoint({id(v), *map(id, components(v))})
        }
        inside = {id(internal): names.get(id(external)) for external, internal in graph.captures}
        for op in graph.get_operations():
            name = inside.get(id(op.inputs[0])) if _ASSIGNS.fullmatch(op.type) else None
            if name is not None:
                raise _assigns_in_every_step(name)

    def _add(self, variable: tf.Variable, prefix: str = "") -> None:
        wanted = "/".join(filter(None, (prefix, base_name(variable))))
        name = _unique(wanted, self.variables)
        self.variables[name], self._wanted[name] = variable, wanted


@dataclass
class _Frame:
    """Code that is running: `build` itself, a layer's call, or code whose objects are not cached."""

    owner: int  # the id of a layer, or 0 for `build`
    is_ignored: bool = False
    counts: Counter[Key] = field(default_factory=Counter)


class BuildCall:
    """A call of `build` in progress; `keras_hooks` reports to it what Keras does.

    Args:
        objects: those of the first call, which fills them.
        take_over: for the first call: called with each layer that `build` itself calls, before its first call.
        before: for the first call: the values to restore after it.
        seeds: by the name of a seed state, the variable that the present tower uses instead.

    Attributes:
        called: the layers that `build` itself has called, by id.
        variables: the `tf.Variable` objects that `build` or its layers have asked for.
        losses: tensors that layers have added.
        taken: ids of the losses, and of the weights whose regularizers, `build` has read itself.
        used_by_layers: ids of the variables that were used inside of layers.
        shared: objects by keys, for code that makes something once in a call and uses it in several places.
        updates_metrics: whether assignments to the variables of metrics count.
    """

    def __init__(
        self,
        objects: Objects,
        take_over: Callable[[Any], None] | None = None,
        *,
        before: VariableValues | None = None,
        seeds: Mapping[str, tf.Variable] | None = None,
    ) -> None:
        self._objects = objects
        self._take_over = take_over
        self._is_first = take_over is not None
        self._before = VariableValues() if before is None else before
        self._seeds = {} if seeds is None else seeds
        self._scopes = [""]
        self._paths: dict[str, str] = {}
        self._frames = [_Frame(0)]
        self._given: Any = None
        self._key: Key | None = None
        self._new: dict[int, Any] = {}
        self.called: dict[int, Any] = {}
        self.variables: list[Any] = []
        self.losses: list[Any] = []
        self.taken: set[int] = set()
        self.used_by_layers: set[int] = set()
        self.shared: dict[Any, Any] = {}
        self.updates_metrics = True

    @property
    def _in_layer(self) -> bool:
        return len(self._frames) > 1

    # -- objects ------------------------------------------------------------------------------------------------------

    def find(self, kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The object of the first call that stands for a new one of this class, or None if there is none."""
        frame, self._key = self._frames[-1], None
        if frame.is_ignored:
            return None
        scope = "" if frame.owner else self.scope
        key = (frame.owner, scope, kind.__module__, kind.__qualname__, _outline(args), _outline(kwargs))
        made, number = self._objects.get(key, []), frame.counts[key]
        frame.counts[key] += 1
        if number < len(made):
            self._given = made[number]
            return self._given
        self._key = key
        return None

    def add(self, made: Any) -> None:
        """Cache a new object, which is not initialized yet, where `find` has returned None."""
        self._new[id(made)] = made
        # An object that only a later call makes has no variables, and may hold tensors of that call's graph.
        if self._key is not None and self._is_first:
            self._objects.setdefault(self._key, []).append(made)
            self._frames[-1].counts[self._key] = len(self._objects[self._key])

    def table(self, contents: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The lookup table of these contents that the first call made, or what `make` returns."""
        if self._frames[-1].is_ignored:
            return make()
        key = ("table", *contents, ())
        if self._is_first and key not in self._objects:
            self._objects[key] = [make()]
        return self._objects[key][0] if key in self._objects else make()

    def is_initialized(self, found: Any) -> bool:
        """Whether an object whose class is about to initialize it comes from `find`; True once for each."""
        if found is not self._given:
            return False
        self._given = None
        return True

    @property
    def scope(self) -> str:
        """The name scope inside of `build` as it is written there: a graph numbers scopes, control flow adds some."""
        return self._scopes[-1]

    def enter_scope(self, name: str, full: str) -> None:
        """A `tf.name_scope` begins.

        Args:
            name: as given.
            full: as TensorFlow has made it.
        """
        inner = f"{self.scope}/{name}" if self.scope else name
        self._scopes.append(self._paths.get(name, name.rstrip("/")) if name.endswith("/") else inner)
        self._paths[full] = self.scope

    def leave_scope(self) -> None:
        """It ends."""
        self._scopes.pop()

    def note(self, variable: Any) -> None:
        """A variable is about to be used; see `keras_hooks.noting`."""
        if self._in_layer:
            self.used_by_layers.add(id(variable))

    def check_left_out(self) -> None:
        """Raise a ModelError if an object with weights was left out that only the order tells from a used one."""
        for key, made in self._objects.items():
            used = self._frames[0].counts[key]
            if key[0] == 0 and 0 < used < len(made) and isinstance(made[0], STATEFUL):
                names = [v.path for v in _floating(made[-1])]
                if names:
                    raise _left_out(names[0])

    # -- calls --------------------------------------------------------------------------------------------------------

    @contextmanager
    def inside(self, layer: Any) -> Iterator[None]:
        """A layer is called in this block: what is made in it belongs to the layer."""
        if not self._in_layer and id(layer) not in self.called:
            self.called[id(layer)] = layer
            if self._take_over is not None:
                self._take_over(layer)
        with self._frame(_Frame(id(layer))):
            yield

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """An object is initialized or built in this block, which no later call repeats."""
        with self._frame(_Frame(0, is_ignored=True)), self._before.keeping():
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
        return not (self._is_first or self._in_layer or id(changed) in self._new)

    def assign(self, variable: Any, value: Any, make: Callable[[], Any]) -> Any:
        """Let `make` assign a value to a variable, unless the first call has assigned it once and for all.

        Raises:
            ModelError: the assignment would happen in every step.
        """
        if not self.updates_metrics and variable.value.synchronization == tf.VariableSynchronization.ON_READ:
            return value
        is_once = not self._in_layer and not tf.is_tensor(value) and not isinstance(value, KerasVariable)
        if self._is_first and is_once:
            with self._before.keeping(*components(variable.value)):
                return make()
        if self._is_first or self._in_layer:
            return make()
        if is_once:
            return value
        if variable.trainable:
            raise _assigns_in_every_step(variable.path)
        return make()

    # -- losses and seeds ---------------------------------------------------------------------------------------------

    def note_losses(self, losses: list[Any]) -> None:
        """A layer has added losses."""
        self.losses += losses

    def note_taken(self, layer: Any, losses: list[Any]) -> None:
        """The losses of a layer were read: if `build` did it, `build` takes care of them."""
        if not self._in_layer:
            self.taken |= {id(loss) for loss in losses} | {id(weight) for weight in layer.trainable_weights}

    def trainable_variables(self) -> list[Any]:
        """The trainable variables of layers that `build` has called so far, and those that it has made itself."""
        weights = [weight for layer in self.called.values() for weight in layer.weights]
        trained = {id(weight) for layer in self.called.values() for weight in layer.trainable_weights}
        found = {id(weight.value): weight.value for weight in weights if id(weight) in trained}
        of_layers = {id(weight.value) for weight in weights}
        found |= {id(made): made for made in self.variables if made.trainable and id(made) not in of_layers}
        return list(found.values())

    def take_losses(self) -> list[Any]:
        """The losses of layers that `build` has called so far; `build` takes care of them from now on."""
        weights = {id(w): w for layer in self.called.values() for w in layer.trainable_weights}
        found = [loss for loss in self.losses if id(loss) not in self.taken]
        found += [w.regularizer(w) for w in weights.values() if w.regularizer is not None and id(w) not in self.taken]
        self.taken |= {*map(id, self.losses), *weights}
        return found

    def seed_state(self, state: Any) -> Any:
        """The variable that the present tower uses instead of the state of a `SeedGenerator`, or None."""
        return self._seeds.get(base_name(state)) if self._seeds else None


class _GivenVariables:
    """A variable creator that returns the variables of the first call, by name and order.

    Args:
        variables: in the order of creation.
        call: the later call.
    """

    def __init__(self, variables: list[tf.Variable], call: BuildCall) -> None:
        self._call = call
        self._rest: dict[str, list[tf.Variable]] = {}
        self._used: set[str] = set()
        for variable in variables:
            self._rest.setdefault(base_name(variable), []).append(variable)

    def __call__(self, make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        name = "/".join(filter(None, (self._call.scope, arguments.get("name") or "Variable")))
        wanted = _kind_of(arguments)
        rest = self._rest.get(name, [])
        if rest and describe_variable(rest[0]) == wanted:
            self._used.add(name)
            self._call.variables.append(rest[0])
            return rest.pop(0)
        first = f"made it {describe_variable(rest[0])}" if rest else "made no such variable, or not in that place"
        raise MissingVariableError(
            name,
            f"build() asked for {name} ({wanted}), but its first call {first}; it must make the same layers, with the "
            "same arguments, and the same variables in every call, for training and not",
        )

    def check_left_out(self) -> None:
        """Raise a ModelError if a variable was left out that only the order tells from a used one."""
        for name in self._used:
            if self._rest[name]:
                raise _left_out(base_name(self._rest[name][-1]))


def base_name(variable: Any) -> str:
    """A variable's name without the output number, such as ``fc0/kernel``."""
    return str(variable.name).split(":")[0]


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    unique, number = name, 0
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    return unique


def _kind_of(arguments: dict[str, Any]) -> str:
    """Dtype and shape of a variable to be made, as `describe_variable` writes them."""
    value, dtype = arguments.get("initial_value"), arguments.get("dtype")
    if callable(value):
        with passing_graph("initial_value").as_default():  # only for the shape: nothing is computed
            value = tf.convert_to_tensor(value(), dtype=dtype)
    else:
        value = tf.convert_to_tensor(value, dtype=dtype)
    shape = arguments.get("shape")
    return f"{value.dtype.name}[{','.join(map(str, value.shape if shape is None else tf.TensorShape(shape)))}]"


def _assigns_in_every_step(name: str) -> ModelError:
    return ModelError(
        f"build() assigns a computed value to the trainable variable {name}, which would happen in every step; "
        "assign a NumPy array, which is taken over once, or change it in a callback or in the trainer's train_step"
    )


def _left_out(name: str) -> ModelError:
    return ModelError(
        f"build() left out {name}, which cannot be told from another variable of the same kind of layer; give every "
        "layer and variable that is not in all calls, and those like it, a name of its own"
    )


def _has_name(key: Key) -> bool:
    """Whether an object was given a name where it was made."""
    return dict(key[-1]).get("name") is not None


def _floating(made: Any) -> list[Any]:
    if isinstance(made, KerasVariable):
        return [made]
    found = [] if isinstance(made, keras.random.SeedGenerator) else list(made.variables)
    return [v for v in found if tf.as_dtype(v.dtype).is_floating]


def _outline(value: Any) -> Any:
    """The part of an argument that is the same in every call of `build`."""
    if value is None or isinstance(value, (bool, bytes, complex, float, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_outline, value))
    if isinstance(value, Mapping):
        return tuple((key, _outline(item)) for key, item in value.items())
    if isinstance(value, STATEFUL):
        return id(value)
    if isinstance(value, keras.KerasTensor):
        return _outline(made_by(value))
    return getattr(value, "__qualname__", None) or type(value).__qualname__
