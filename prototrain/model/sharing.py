"""What all calls of a model's `build` share: Keras objects that are made once, and variables by their names."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from prototrain.checkpoint.fit import describe_variable
from prototrain.checkpoint.global_random import random_state_kept
from prototrain.errors import ModelError
from prototrain.model import table_hooks  # noqa: F401 - has lookup tables made once
from prototrain.model.build_call import BuildCall, Objects, assigns_in_every_step, is_named
from prototrain.model.kept_values import keeping_values, noting
from prototrain.model.keras_hooks import has_automatic_name, listening, place_again
from prototrain.private_api.graphs import passing_graph
from prototrain.private_api.of_keras import KerasVariable, call_by, functional_kinds, layers_within, own_weights
from prototrain.step.scratch import is_scratch
from prototrain.towers import components, tower_index

_ASSIGNS = re.compile(r"Assign(Add|Sub)?VariableOp|ResourceScatter\w*")


class MissingVariableError(ModelError):
    """A later call of `build` wants a variable that the first one has not made.

    Attributes:
        variable: its name.
    """

    def __init__(self, variable: str, text: str) -> None:
        super().__init__(text)
        self.variable = variable


class VariableStore:
    """Lets all calls of `build` use the layers and variables that its first call makes.

    The first call, under `creating`, makes them; `adopt` adds the variables that existed before it. In every later
    call, under `sharing`, a Keras object (a layer, a metric, a seed generator, an optimizer) that `build` makes is the
    one that the first call made in its place, and so is a `tf.Variable`. A call may leave some out, such as layers that
    only training has, but it cannot add any that have variables.

    Attributes:
        variables: by unique name, in the order of creation; names are those of TensorFlow without ``:0``.
        of_tower: by a tower's index, what that tower uses in place of the seed states of these names.
        layers: the Keras layers that `build` makes or calls, by name.
    """

    def __init__(self) -> None:
        self.variables: dict[str, tf.Variable] = {}
        self._wanted: dict[str, str] = {}  # their names, before they were made unique
        self.of_tower: dict[int, dict[str, tf.Variable]] = {}
        self.layers: dict[str, keras.layers.Layer] = {}
        self._objects: Objects = {}
        self._created: list[tf.Variable] = []
        self._of_lasting_layers: set[int] = set()
        self._weights: dict[int, Any] = {}  # by the id of the tf.Variable that one holds
        self._thread = threading.local()  # towers are traced in threads of their own

    @contextmanager
    def creating(
        self, strategy: tf.distribute.Strategy | None = None, declare: Callable[..., dict[str, Any]] = dict
    ) -> Iterator[None]:
        """Create layers and variables; afterwards nothing is left of the batch that the first call was made with.

        What `build` assigns for good, by `load_weights`, `set_weights` or `assign` of an array, stays.

        Args:
            strategy: places the variables, by default the present one. Only they are made in its scope: layers that ask
                for the other towers (synchronized batch normalisation) cannot run between towers, where the scope would
                put them.
            declare: from and to the arguments of a new variable, for what the strategy needs to know of it.
        """
        strategy = strategy if strategy is not None else tf.distribute.get_strategy()
        placing = False

        def take_over(layer: keras.layers.Layer) -> None:
            """Let a layer that was made before have its variables where the towers are."""
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

        with keeping_values() as kept, tf.variable_creator_scope(create):
            call = BuildCall(self._objects, take_over, kept=kept)
            with listening(call):
                yield
            call.end()

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Give the existing layers and variables instead of new ones.

        Raises:
            ModelError: `build` wants a variable that the first call did not create, leaves a layer out that cannot be
                told from one that it uses, or assigns weights anew in every step.
        """
        call = BuildCall(self._objects, seeds=self.of_tower.get(tower_index()))
        given = _Given(self._created, call)
        # Keras draws a seed for every initializer that is made. Those of a later call are not used, and how often a
        # model is traced must not change what a callback draws.
        with random_state_kept(), listening(call), noting(call), tf.variable_creator_scope(given):
            yield
        call.end()
        call.check_left_out()
        self._thread.call = call

    def adopt(self, build: Callable[[Any], Any], inputs: Any) -> Any:
        """Call `build` once more, traced and sharing, and add the variables that it uses but has not created.

        They are of layers that existed before the first call, such as attributes of a model. Whatever keeps a second
        call from working shows here, before anything of a run is written.

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
        for handle in map(id, graph.external_captures):  # in the order of their use
            if handle in by_handle and handle not in known and not is_scratch(by_handle[handle]):
                self._add(by_handle[handle])
        self._find_layers(self._thread.call)
        self._check_assignments(self._thread.call, graph)
        return graph

    # -- what Keras knows of the variables ----------------------------------------------------------------------------

    def keras_variable(self, variable: Any) -> Any:
        """The Keras variable that holds a variable; one that no layer has is returned as it is."""
        return self._weights.get(id(variable), variable)

    @property
    def trainable(self) -> dict[str, tf.Variable]:
        """The variables that are to be trained, as their layers say at present."""
        found = self.variables.items()
        return {name: v for name, v in found if v.trainable and self.keras_variable(v).trainable}

    @property
    def outlasting(self) -> list[str]:
        """The names of the variables that are not made for one trainer: those that existed before, and those of layers
        that did."""
        created = set(map(id, self._created))
        found = self.variables.items()
        return [name for name, v in found if id(v) not in created or id(v) in self._of_lasting_layers]

    @property
    def frozen(self) -> set[int]:
        """The ids of the variables of layers that are not trainable at present, their statistics too."""
        layers = {id(layer): layer for root in self.layers.values() for layer in layers_within(root)}
        return {id(v.value) for layer in layers.values() if not layer.trainable for v in own_weights(layer)}

    def loss(self) -> tf.Tensor | None:
        """The sum of the layers' losses in the last call of `build` in this thread, float32; None if there are none.

        These are what layers have added, and the regularizers of all weights that are trainable; without those that
        `build` has asked for itself, which it will have added to its loss.
        """
        call: BuildCall | None = getattr(self._thread, "call", None)
        if call is None:
            return None
        weights = [v for v in self._weights.values() if v.trainable and v.regularizer is not None]
        losses = [loss for loss in call.losses if id(loss) not in call.taken]
        losses += [v.regularizer(v) for v in weights if id(v) not in call.taken]
        return tf.add_n([tf.cast(loss, tf.float32) for loss in losses]) if losses else None

    def _find_layers(self, call: BuildCall) -> None:
        made = [(place[1], item) for place, items in self._objects.items() if place[0] == 0 for item in items]
        layers = [(scope, item) for scope, item in made if isinstance(item, keras.layers.Layer)]
        known = {id(layer) for _, layer in layers}
        layers += [("", layer) for layer in call.called.values() if id(layer) not in known]
        for scope, layer in layers:
            self.layers[_unique("/".join(filter(None, (scope, layer.name))), self.layers)] = layer
        for item in [*self.layers.values(), *(item for _, item in made)]:
            for variable in [item] if isinstance(item, KerasVariable) else getattr(item, "variables", [item]):
                if isinstance(variable, KerasVariable):
                    self._weights.setdefault(id(variable.value), variable)
        mine = {id(item) for _, item in made}
        lasting = [layer for layer in call.called.values() if id(layer) not in mine]
        self._of_lasting_layers = {id(variable.value) for layer in lasting for variable in layer.variables}
        self._prefix_names([item for _, item in made])
        self._check_names()
        paths = Counter(holder.path for holder in self._weights.values())
        for name, variable in self.variables.items():
            holder = self.keras_variable(variable)
            if holder is not variable and paths[holder.path] > 1:
                call_by(holder, name)  # which has the name scope, that Keras leaves out

    def _prefix_names(self, made: list[Any]) -> None:
        """Put the names of functional models that `build` makes ahead of those of their variables.

        Keras makes these variables when a layer is called, before there is a model. One that has several models has the
        name of the first.
        """
        models: list[Any] = [item for item in made if isinstance(item, functional_kinds()) and not has_automatic_name(item)]
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
        """Fail where two layers that `build` has made under one name got one variable each."""
        layers = self.layers.values()
        owners = {id(v.value): layer for layer in layers for v in own_weights(layer)}
        named = {id(item) for place, items in self._objects.items() if is_named(place) for item in items}
        for layer in layers:  # what children have that `build` has not made itself
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
        """Fail where `build` itself assigns a trainable `tf.Variable`; see `BuildCall.assign` for those of Keras.

        What a layer does with a variable of its own, such as counting, is its own concern.
        """
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
                raise assigns_in_every_step(name)

    def _add(self, variable: tf.Variable, prefix: str = "") -> None:
        wanted = "/".join(filter(None, (prefix, base_name(variable))))
        name = _unique(wanted, self.variables)
        self.variables[name], self._wanted[name] = variable, wanted


class _Given:
    """A variable creator that gives one later call the variables of the first, by their names and in their order.

    Args:
        variables: in the order of creation.
        call: the later one.
    """

    def __init__(self, variables: list[tf.Variable], call: BuildCall) -> None:
        self._call = call
        self._rest: dict[str, list[tf.Variable]] = {}
        for variable in variables:
            self._rest.setdefault(base_name(variable), []).append(variable)

    def __call__(self, make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        name = "/".join(filter(None, (self._call.scope, arguments.get("name") or "Variable")))
        wanted = _kind_of(arguments)
        rest = self._rest.get(name, [])
        if rest and describe_variable(rest[0]) == wanted:
            self._call.variables.append(rest[0])
            return rest.pop(0)
        first = f"made it {describe_variable(rest[0])}" if rest else "made no such variable, or not in that place"
        raise MissingVariableError(
            name,
            f"build() asked for {name} ({wanted}), but its first call {first}; it must make the same layers, with the "
            "same arguments, and the same variables in every call, for training and not",
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


def _kind_of(arguments: dict[str, Any]) -> str:
    """Dtype and shape of a variable that is to be made, as `describe_variable` writes them."""
    value, dtype = arguments.get("initial_value"), arguments.get("dtype")
    if callable(value):
        with passing_graph("initial_value").as_default():  # for its shape: nothing is computed
            value = tf.convert_to_tensor(value(), dtype=dtype)
    else:
        value = tf.convert_to_tensor(value, dtype=dtype)
    shape = arguments.get("shape")
    return f"{value.dtype.name}[{','.join(map(str, value.shape if shape is None else tf.TensorShape(shape)))}]"
