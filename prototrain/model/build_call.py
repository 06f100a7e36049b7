"""One call of `build`, and the Keras objects that the first call made for all later ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.model.kept_values import KeptValues
from prototrain.model.keras_hooks import STATEFUL
from prototrain.private_api.of_keras import KerasVariable, forget_losses, made_by
from prototrain.towers import components

Place = tuple[Any, ...]
"""Where an object is made: by which layer, in which name scope, of which class, with which arguments."""

Objects = dict[Place, list[Any]]
"""What was made, in the order of creation among those that only the order tells apart."""


@dataclass
class _Frame:
    """What is running: `build` itself, the call of a layer, or something in which no object is looked for."""

    owner: int  # the id of a layer, whose own calls start counting anew; 0 for `build`
    is_aside: bool = False
    counts: Counter[Place] = field(default_factory=Counter)


class BuildCall:
    """A call of `build` that is under way; `keras_hooks` tells it what Keras does.

    Objects are found again by their class, their arguments (and so by their names, if they are given), the name scope
    and, among those that agree in all of it, by their order. Another layer's children belong to that layer.

    Args:
        objects: what the first call made; it fills them.
        take_over: only for the first call: is given each layer that `build` itself calls, before its first call.
        kept: only for the first call: what it changes is put back, unless it is for good.
        seeds: by the name of a seed state, what the present tower has in its place.

    Attributes:
        called: the layers that `build` itself has called, by their ids.
        variables: the `tf.Variable` objects that were asked for where `build` or a layer makes one.
        losses: tensors that layers have added, in the order of addition.
        taken: ids of losses and of weights whose regularizers `build` has asked for itself.
        used_by_layers: the ids of the variables that were used while a layer was called.
        shared: objects by keys, for code that is to make one thing in a call and use it in several places.
    """

    def __init__(
        self,
        objects: Objects,
        take_over: Callable[[Any], None] | None = None,
        *,
        kept: KeptValues | None = None,
        seeds: Mapping[str, tf.Variable] | None = None,
    ) -> None:
        self._objects = objects
        self._take_over = take_over
        self._is_first = take_over is not None
        self._kept = KeptValues() if kept is None else kept
        self._seeds = {} if seeds is None else seeds
        self._scopes = [""]
        self._paths: dict[str, str] = {}
        self._frames = [_Frame(0)]
        self._given: Any = None
        self._place: Place | None = None
        self._new: dict[int, Any] = {}
        self.called: dict[int, Any] = {}
        self.variables: list[Any] = []
        self.losses: list[Any] = []
        self.taken: set[int] = set()
        self.used_by_layers: set[int] = set()
        self.shared: dict[Any, Any] = {}

    @property
    def _in_layer(self) -> bool:
        return len(self._frames) > 1

    # -- what is made -------------------------------------------------------------------------------------------------

    def earlier(self, kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The object that an earlier call made in this place, or None if a new one is to be made."""
        frame, self._place = self._frames[-1], None
        if frame.is_aside:
            return None
        scope = "" if frame.owner else self.scope
        place = (frame.owner, scope, kind.__module__, kind.__qualname__, _outline(args), _outline(kwargs))
        made, number = self._objects.get(place, []), frame.counts[place]
        frame.counts[place] += 1
        if number < len(made):
            self._given = made[number]
            return self._given
        self._place = place
        return None

    def note_new(self, made: Any) -> None:
        """A new object was made where `earlier` has given None; it is not initialised yet."""
        self._new[id(made)] = made
        # What only a later call makes has no variables, and may hold tensors of that call's graph.
        if self._place is not None and self._is_first:
            self._objects.setdefault(self._place, []).append(made)
            self._frames[-1].counts[self._place] = len(self._objects[self._place])

    def table(self, contents: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The lookup table with these contents that the first call made, or what `make` gives."""
        if self._frames[-1].is_aside:
            return make()
        place = ("table", *contents, ())
        if self._is_first and place not in self._objects:
            self._objects[place] = [make()]
        return self._objects[place][0] if place in self._objects else make()

    def is_initialised(self, given: Any) -> bool:
        """Whether an object whose class is about to initialise it comes from `earlier`; asked once for each."""
        if given is not self._given:
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
            name: as it was given.
            full: as TensorFlow has made it.
        """
        inner = f"{self.scope}/{name}" if self.scope else name
        self._scopes.append(self._paths.get(name, name.rstrip("/")) if name.endswith("/") else inner)
        self._paths[full] = self.scope

    def leave_scope(self) -> None:
        """It ends."""
        self._scopes.pop()

    def note(self, variable: Any) -> None:
        """A variable is about to be used; see `kept_values.noting`."""
        if self._in_layer:
            self.used_by_layers.add(id(variable))

    def check_left_out(self) -> None:
        """Fail if an object with weights was left out that might have been meant where another one was given.

        Raises:
            ModelError: only the order tells them apart.
        """
        for place, made in self._objects.items():
            used = self._frames[0].counts[place]
            if place[0] == 0 and 0 < used < len(made) and isinstance(made[0], STATEFUL):
                names = [v.path for v in _floating(made[-1])]
                if names:
                    raise ModelError(
                        f"build() left out {names[0]}, which cannot be told from another variable of the same kind of "
                        "layer; give every layer that is not in all calls, and those like it, a name of its own"
                    )

    # -- what is called -----------------------------------------------------------------------------------------------

    @contextmanager
    def inside(self, layer: Any) -> Iterator[None]:
        """Until the end of the context a layer is called: what is made meanwhile belongs to it."""
        if not self._in_layer and id(layer) not in self.called:
            self.called[id(layer)] = layer
            if self._take_over is not None:
                self._take_over(layer)
        with self._frame(_Frame(id(layer))):
            yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Until the end of the context an object is initialised or built, which no later call repeats."""
        with self._frame(_Frame(0, is_aside=True)), self._kept.for_good():
            yield

    @contextmanager
    def _frame(self, frame: _Frame) -> Iterator[None]:
        self._frames.append(frame)
        try:
            yield
        finally:
            self._frames.pop()

    def end(self) -> None:
        """Let nothing of this call remain on the layers."""
        for layer in self.called.values():
            forget_losses(layer)

    # -- what happens once --------------------------------------------------------------------------------------------

    def is_done(self, changed: Any) -> bool:
        """Whether an earlier call has made a change of this object that is made once only."""
        return not (self._is_first or self._in_layer or id(changed) in self._new)

    def assign(self, variable: Any, value: Any, make: Callable[[], Any]) -> Any:
        """Let `make` assign a value to a variable, unless the first call has done so for good.

        Raises:
            ModelError: it would be repeated in every step.
        """
        for_good = not self._in_layer and not tf.is_tensor(value) and not isinstance(value, KerasVariable)
        if self._is_first and for_good:
            with self._kept.for_good(*components(variable.value)):
                return make()
        if self._is_first or self._in_layer:
            return make()
        if for_good:
            return value
        if variable.trainable:
            raise assigns_in_every_step(variable.path)
        return make()

    # -- losses and seeds ---------------------------------------------------------------------------------------------

    def note_losses(self, losses: list[Any]) -> None:
        """A layer has added losses."""
        self.losses += losses

    def note_taken(self, layer: Any, losses: list[Any]) -> None:
        """The losses of a layer were read, so `build` itself takes care of them."""
        if not self._in_layer:
            self.taken |= {id(loss) for loss in losses} | {id(weight) for weight in layer.trainable_weights}

    def trainable_variables(self) -> list[Any]:
        """The variables of the layers that `build` has called so far, and those that it has made itself, if trained."""
        weights = [weight for layer in self.called.values() for weight in layer.weights]
        trained = {id(weight) for layer in self.called.values() for weight in layer.trainable_weights}
        found = {id(weight.value): weight.value for weight in weights if id(weight) in trained}
        of_layers = {id(weight.value) for weight in weights}
        found |= {id(made): made for made in self.variables if made.trainable and id(made) not in of_layers}
        return list(found.values())

    def take_losses(self) -> list[Any]:
        """The losses of the layers that `build` has called so far; it takes care of them itself from here on."""
        weights = {id(w): w for layer in self.called.values() for w in layer.trainable_weights}
        found = [loss for loss in self.losses if id(loss) not in self.taken]
        found += [w.regularizer(w) for w in weights.values() if w.regularizer is not None and id(w) not in self.taken]
        self.taken |= {*map(id, self.losses), *weights}
        return found

    def seed_state(self, state: Any) -> Any:
        """What the present tower has in place of the state of a `SeedGenerator`, or None."""
        return self._seeds.get(str(state.name).split(":")[0]) if self._seeds else None


def assigns_in_every_step(name: str) -> ModelError:
    """The error for an assignment to a weight that would be repeated."""
    return ModelError(
        f"build() assigns a computed value to the trainable variable {name}, which would happen in every step; "
        "assign a NumPy array, which is taken over once, or change it in a callback or in the trainer's train_step"
    )


def is_named(place: Place) -> bool:
    """Whether an object was given a name where it was made."""
    return dict(place[-1]).get("name") is not None


def _floating(made: Any) -> list[Any]:
    if isinstance(made, KerasVariable):
        return [made]
    found = [] if isinstance(made, keras.random.SeedGenerator) else list(made.variables)
    return [v for v in found if tf.as_dtype(v.dtype).is_floating]


def _outline(value: Any) -> Any:
    """What is the same in every call, of an argument that an object is made with."""
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
