"""Layers and variables that all calls of a model's `build` share.

`build` is called once eagerly to create all objects, then traced for each tower, for training and for evaluation. Later
calls get the objects of the first call instead of new ones; see `build_call`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from prototrain.checkpoint.state import unique_name
from prototrain.checkpoint.values import preserve_random_state
from prototrain.errors import ModelError
from prototrain.gradient_processors import NAME
from prototrain.model.build_call import BuildCall, Objects, base_name, setting
from prototrain.step.variables import is_scratch
from prototrain.tf_private import Functional, KerasVariable, call_by, held_by, hold, layers_within, own_weights
from prototrain.towers import components


class LayerCache:
    """The layers and variables of a model, by name.

    The first call of `build`, in `creating`, makes them; `add_used` adds variables that existed before. In later calls,
    in `sharing`, `build` gets the Keras objects (layers, metrics, seed generators, optimizers), lookup tables and
    `tf.Variable` objects of the first call. A later call may leave out objects, such as layers that only training uses,
    but cannot add objects with variables.

    Attributes:
        variables: the variables by unique name, TensorFlow's name without ``:0``, in the order of creation.
        layers: the Keras layers that `build` makes or calls, by unique name.
    """

    def __init__(self) -> None:
        self.variables: dict[str, tf.Variable] = {}
        self.layers: dict[str, keras.layers.Layer] = {}
        self._objects: Objects = {}
        self._created: list[tf.Variable] = []
        self._is_placing = False  # whether `creating` makes a variable
        self._weights: dict[int, Any] = {}  # Keras variables by the id of their tf.Variable
        self._outer: dict[int, tf.Variable] = {}  # variables of existing layers that `build` calls, by id
        self._unused: set[int] = set()  # ids of those that it does not use, such as the head of a pretrained layer
        self._thread = threading.local()  # towers are traced in threads

    @contextmanager
    def creating(self, strategy: tf.distribute.Strategy, make_variable: Callable[..., tf.Variable]) -> Iterator[None]:
        """Context manager for the first call of `build`, which creates layers and variables.

        On exit, variables that changed by running on a batch are restored. One-time assignments of `build`, by
        `load_weights`, `set_weights` or `assign` of an array, are kept. `make_variable` is that of a `Placement`.
        """

        def take_over(layer: keras.layers.Layer) -> None:
            """Place the variables of an existing layer on the towers."""
            for variable in layer.variables:
                if not strategy.extended.variable_created_in_scope(variable.value):
                    _place_again(variable)  # calls `create`

        def create(make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
            if self._is_placing:
                return make(**arguments)

            def place() -> tf.Variable:
                # Only the variable is in the scope, since synchronized layers cannot run there.
                with setting(self, "_is_placing", True), strategy.scope():
                    variable = make_variable(tf.Variable, **arguments)
                self._created.append(variable)
                return variable

            return call.variable(arguments, place)

        call = BuildCall(self._objects, is_first=True, take_over=take_over)
        with call.running(), tf.variable_creator_scope(create):
            yield

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Context manager for later calls of `build`, which get the existing layers and variables."""
        call = BuildCall(self._objects)

        def find(make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
            def refuse() -> tf.Variable:
                name = "/".join(filter(None, (tf.get_current_name_scope(), arguments.get("name") or "Variable")))
                raise ModelError(
                    f"build() asked for {name}, which its first call did not make; it must make the same layers, with "
                    "the same arguments, and the same variables in every call, for training and not, and the call of "
                    "a layer must make none"
                )

            return call.variable(arguments, refuse)

        # Keras draws a seed for each initializer. Later calls do not use them and must not advance the generator.
        with preserve_random_state(), call.running(), tf.variable_creator_scope(find):
            yield
        self._thread.call = call

    def add_used(self, build: Callable[[Any], Any], inputs: Any) -> None:
        """Trace `build` once in `sharing`, and add the variables that it uses but has not created.

        These variables belong to layers that existed before the first call, such as attributes of a model. A model that
        cannot be called twice fails here, before a run writes anything.
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
        handles = set(map(id, graph.external_captures))
        unused = [v for v in self._outer.values() if not any(id(part.handle) in handles for part in components(v))]
        self._unused = set(map(id, unused))

    def _name(self, called: dict[int, Any], before: list[tf.Variable]) -> None:
        """Name the layers and variables, with those that `build` has called or uses but has not created."""
        made = {id(item): item for items in self._objects.values() for item in items}
        named = [item for key, items in self._objects.items() if key.name for item in items]
        layers = {key: item for key, item in made.items() if isinstance(item, keras.layers.Layer)} | called
        for layer in layers.values():
            self.layers[unique_name(layer.name, self.layers)] = layer
        for item in [*self.layers.values(), *made.values()]:
            for variable in [item] if isinstance(item, KerasVariable) else getattr(item, "variables", [item]):
                if isinstance(variable, KerasVariable):
                    self._weights.setdefault(id(variable.value), variable)

        prefixes = _model_names([item for item in named if isinstance(item, Functional)])
        owners: dict[int, Any] = {}  # the innermost layer with a given name, by the id of each variable
        of_layers = [item for item in named if isinstance(item, keras.layers.Layer)]  # metrics may have equal names
        for layer in sorted(of_layers, key=lambda one: len(one.variables)):
            for weight in layer.variables:
                owners.setdefault(id(weight.value), layer)
        # Layers that existed before come last, whether the first call or an earlier trainer has built them.
        self._outer = {
            id(v.value): v.value for key, layer in called.items() if key not in made for v in layer.variables
        }
        mine = [variable for variable in self._created if id(variable) not in self._outer]
        last = self._outer | {id(variable): variable for variable in before}
        for variable in [*mine, *last.values()]:
            own_name = _name_with_layers(variable, self._weights.get(id(variable)))
            wanted = "/".join(filter(None, (prefixes.get(id(variable)), own_name)))
            owner, first = owners.get(id(variable)), owners.get(id(self.variables.get(wanted)))
            if owner is not None and first is not None and owner is not first:
                raise ModelError(
                    f"build() makes two layers named {owner.name!r}, so there would be two of {wanted}; to share the "
                    "weights make the layer once and call it twice, otherwise give one of them another name or call it "
                    "in a tf.name_scope"
                )
            self.variables[unique_name(wanted, self.variables)] = variable
        paths = Counter(holder.path for holder in self._weights.values())
        for name, holder in self.holders.items():
            if isinstance(holder, KerasVariable) and paths[holder.path] > 1:
                call_by(holder, name)  # unlike Keras's path, the name includes the scope
        self.note_names()

    def note_names(self) -> None:
        """Give the variables their names for gradient processors. Another trainer may have given them others."""
        for name, variable in self.variables.items():
            setattr(variable, NAME, name)

    def keras_variable(self, variable: Any) -> Any:
        """Return the Keras variable of a `tf.Variable`, or the `tf.Variable` itself if it has none."""
        return self._weights.get(id(variable), variable)

    @property
    def holders(self) -> dict[str, Any]:
        """The Keras variables by name; a variable without one stands for itself."""
        return {name: self.keras_variable(variable) for name, variable in self.variables.items()}

    def handles(self) -> set[int]:
        """Return the ids of the resource handles of all layers' variables, on every tower."""
        # Keras does not count the states of a recurrent layer among its variables.
        states = tf.nest.flatten([getattr(layer, "states", None) or () for layer in self.all_layers()])
        held = [held_by(one) for one in [*self._weights.values(), *states] if isinstance(one, KerasVariable)]
        return {id(part.handle) for variable in held for part in components(variable)}

    @property
    def trainable(self) -> dict[str, tf.Variable]:
        """The variables that `build` uses and that are trainable and not frozen at the moment, by name."""
        used = {name: v for name, v in self.variables.items() if id(v) not in self._unused}
        return {name: v for name, v in used.items() if v.trainable and self.keras_variable(v).trainable}

    @property
    def frozen(self) -> set[int]:
        """The ids of all variables, including statistics, of the layers that are frozen at the moment."""
        return {id(v.value) for layer in self.all_layers() if not layer.trainable for v in own_weights(layer)}

    def all_layers(self) -> list[Any]:
        """Return the layers of the model and all layers inside them, outer layers first."""
        return list({id(layer): layer for root in self.layers.values() for layer in layers_within(root)}.values())

    @property
    def trained(self) -> list[str]:
        """The names of the variables that a trainer of this process has trained."""
        return [name for name, holder in self.holders.items() if getattr(holder, "is_trained", False)]

    def mark_trained(self, names: Iterable[str], is_trained: bool = True) -> None:
        """Mark variables as trained, or as loaded: trained values that are loaded are intended."""
        for name in names:
            self.holders[name].is_trained = is_trained

    def loss(self) -> tf.Tensor | None:
        """Return the sum (float32) of the layers' losses in this thread's last `build`, or None without any; traced.

        Losses that `build` has read are excluded, since it adds them to its own loss.
        """
        call: BuildCall | None = getattr(self._thread, "call", None)
        losses = [] if call is None else call.losses_left([v for v in self._weights.values() if v.trainable])
        return tf.add_n([tf.cast(loss, tf.float32) for loss in losses]) if losses else None


def _name_with_layers(variable: Any, holder: Any) -> str:
    """Return a variable's name with those of the layers within a layer, which TensorFlow's name may lack."""
    name, path = base_name(variable).split("/"), getattr(holder, "path", "").split("/")
    if path[0] not in name or len(path) <= len(name) - name.index(path[0]):
        return "/".join(name)
    return "/".join([*name[: name.index(path[0])], *path])


def _place_again(variable: Any) -> None:
    """Replace the `tf.Variable` of a Keras variable by a copy that the current strategy places."""
    held = variable.value
    new = tf.Variable(
        tf.convert_to_tensor(held),
        dtype=held.dtype,
        trainable=held.trainable,
        name=base_name(held),
        aggregation=held.aggregation,
        synchronization=held.synchronization,
    )
    hold(variable, new)


def _model_names(models: list[Any]) -> dict[int, str]:
    """Return the path of functional models around each variable, such as ``outer/inner``, by the variable's id.

    Keras creates these variables when a layer is called, before the model exists. A layer of several models gets the
    path of the first.
    """
    found: dict[int, str] = {}

    def walk(model: Any, path: str) -> None:
        for layer in model.layers:
            longer = f"{path}/{layer.name}" if id(layer) in mine else path
            if isinstance(layer, Functional):
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
