"""Variables that all calls of a model's `build` share, though each call makes its layers anew."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.checkpoint.state import describe_variable
from prototrain.errors import ModelError
from prototrain.towers import components, tower_index

# Scopes are numbered by graph and layer names by process ("fc0_1", "dense_7", "adam_2_1"): what counts stands before.
_NUMBERED = re.compile(r"(?:_\d+)+(?=/|$)")
# Scopes that control flow has in a graph and not when it runs eagerly.
_MOST_LAYERS = 10_000
_GRAPH_SCOPES = {"case", "cond", "foldl", "foldr", "map", "scan", "switch_case", "while"}


class VariableStore:
    """Lets `build` create its layers anew in each call while all calls share one set of variables.

    The first call, under `creating`, makes the variables; `adopt` adds those that existed before it. Every later call,
    under `sharing`, gets them back in the order of creation: where it would create a variable it gets the next one of
    the same name, shape and dtype. A call may leave some out (layers that only training has, or that are attributes of
    the model and exist already), but it cannot add one.

    Attributes:
        variables: by unique name, in the order of creation; names are those of TensorFlow without ``:0``.
        of_tower: by a tower's index, what that tower uses in place of the variables of these names.
    """

    def __init__(self) -> None:
        self.variables: dict[str, tf.Variable] = {}
        self._created: list[tf.Variable] = []
        self.of_tower: dict[int, dict[str, tf.Variable]] = {}

    @contextmanager
    def creating(
        self, strategy: tf.distribute.Strategy | None = None, declare: Callable[..., dict[str, Any]] = dict
    ) -> Iterator[None]:
        """Create variables; afterwards they have their initial values again, whatever the first call did to them.

        Args:
            strategy: places the variables, by default the present one. Only they are made in its scope: layers that ask
                for the other towers (synchronized batch normalisation) cannot run between towers, where the scope would
                put them.
            declare: from and to the arguments of a new variable, for what the strategy needs to know of it.
        """
        initial: list[tuple[tf.Variable, tf.Tensor]] = []
        strategy = strategy if strategy is not None else tf.distribute.get_strategy()
        placing = False

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
            if not variable.trainable:
                initial.append((variable, tf.identity(variable)))
            return variable

        with tf.variable_creator_scope(create):
            yield
        for variable, value in initial:
            variable.assign(value)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Hand out the existing variables instead of creating new ones.

        Raises:
            ModelError: `build` wants a variable that the first call did not create, or left one out that cannot be told
                from one that it used.
        """
        own = self.of_tower.get(tower_index(), {})
        hand_out = _HandOut([own.get(base_name(v), v) for v in self._created], tf.get_current_name_scope())
        _number_layers_beyond(self.variables)
        with _host_random_state_kept(), tf.variable_creator_scope(hand_out):
            yield
        hand_out.check_left_out()

    def adopt(self, build: Callable[[Any], Any], inputs: Any) -> Any:
        """Call `build` once more, traced and sharing, and add the variables that it uses but has not created.

        They are of layers that existed before the first call, such as attributes of a model. Whatever keeps a second
        call from working shows here, before anything of a run is written.

        Args:
            build: called with one batch.
            inputs: the specification of a batch, as `tf.data.Dataset.element_spec`.

        Returns:
            the traced graph.

        Raises:
            ModelError: as `sharing`.
        """

        def traced(batch: Any) -> None:
            with self.sharing():
                build(batch)

        graph = tf.function(traced, autograph=False).get_concrete_function(inputs).graph
        by_handle = {id(variable.handle): variable for variable in graph.variables}
        known = {id(part.handle) for variable in self._created for part in components(variable)}
        for handle in map(id, graph.external_captures):  # in the order of their use
            if handle in by_handle and handle not in known:
                self._add(by_handle[handle])
        return graph

    def _add(self, variable: tf.Variable) -> None:
        name, number = base_name(variable), 0
        while name in self.variables:
            number += 1
            name = f"{base_name(variable)}_{number}"
        self.variables[name] = variable


@dataclass(frozen=True)
class _Wanted:
    """What a call of a variable creator asks for; the name is relative to the scope that `build` was called in."""

    name: str
    shape: tf.TensorShape
    dtype: tf.DType

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype.name}{self.shape.as_list()})"


class _HandOut:
    """A variable creator that gives the variables of the first call to one later call.

    Args:
        variables: in the order of creation.
        outer: the name scope that `build` is called in.
    """

    def __init__(self, variables: Sequence[tf.Variable], outer: str) -> None:
        self._rest = list(variables)
        self._outer = outer
        self._left_out: list[tf.Variable] = []
        self._used: list[tuple[tf.Variable, bool]] = []

    def __call__(self, make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        wanted = _wanted(arguments, self._outer)
        fitting = [place for place, variable in enumerate(self._rest) if _matches(variable, wanted)]
        # Two names that differ in a number only are two layers if they were given, and one if Keras has counted on.
        exact = [place for place in fitting if base_name(self._rest[place]) == wanted.name]
        if not fitting:
            raise ModelError(self._complaint(wanted))
        place = (exact or fitting)[0]
        self._left_out += self._rest[:place]
        variable = self._rest[place]
        self._rest = self._rest[place + 1 :]
        self._used.append((variable, bool(exact)))
        return variable

    def check_left_out(self) -> None:
        """Fail if a variable that was left out might have been meant where another one was handed out."""
        names = {base_name(variable) for variable, _ in self._used}
        counted = {_kind(variable) for variable, exact in self._used if not exact}
        for variable in self._left_out + self._rest:
            # Which seed a layer gets changes no meaning, and Keras never names them after the layer.
            if variable.dtype.is_floating and (base_name(variable) in names or _kind(variable) in counted):
                raise ModelError(
                    f"build() left out {base_name(variable)}, which cannot be told from another variable of that name "
                    "and shape; give every layer that is not in all calls, and those like it, a name of its own"
                )

    def _complaint(self, wanted: _Wanted) -> str:
        rest = [variable for variable in self._rest if _unnumbered(base_name(variable)) == _unnumbered(wanted.name)]
        first = f"made it {describe_variable(rest[0])}" if rest else "made no such variable, or not in that place"
        return (
            f"build() asked for {wanted}, but its first call {first}; "
            "it must make the same variables in the same order in every call, for training and not"
        )


@contextmanager
def _host_random_state_kept() -> Iterator[None]:
    # Keras draws a seed for every layer that is made. Those of a later call are not used, and how often a model is
    # traced must not change what a callback draws.
    python, numpy = random.getstate(), np.random.get_state(legacy=True)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _number_layers_beyond(names: Iterable[str]) -> None:
    """Make Keras number unnamed layers beyond those in `names`, even if its session was cleared in between."""
    taken: dict[str, int] = {}
    for part in {part for name in names for part in name.split("/")[:-1]}:
        kind, _, number = part.rpartition("_")
        if number.isdecimal() and int(number) < _MOST_LAYERS:
            taken[kind] = max(taken.get(kind, 0), int(number))
    for kind, highest in taken.items():
        while keras.backend.get_uid(kind) <= highest:
            pass


def base_name(variable: Any) -> str:
    """A variable's name without the output number, such as ``fc0/kernel``."""
    return str(variable.name).split(":")[0]


def _wanted(arguments: dict[str, Any], outer: str) -> _Wanted:
    scope = tf.get_current_name_scope().removeprefix(outer).removeprefix("/")
    name = arguments.get("name") or "Variable"
    parts = [part for part in scope.split("/") if part and _unnumbered(part) not in _GRAPH_SCOPES]
    value, dtype = arguments.get("initial_value"), arguments.get("dtype")
    if callable(value):
        with tf.__internal__.FuncGraph("initial_value").as_default():  # for its shape: nothing is computed
            value = tf.convert_to_tensor(value(), dtype=dtype)
    else:
        value = tf.convert_to_tensor(value, dtype=dtype)
    shape = arguments.get("shape")
    return _Wanted("/".join([*parts, name]), value.shape if shape is None else tf.TensorShape(shape), value.dtype)


def _matches(variable: tf.Variable, wanted: _Wanted) -> bool:
    same_name = _unnumbered(base_name(variable)) == _unnumbered(wanted.name)
    return same_name and variable.shape == wanted.shape and variable.dtype.base_dtype == wanted.dtype


def _kind(variable: tf.Variable) -> tuple[str, str]:
    return _unnumbered(base_name(variable)), describe_variable(variable)


def _unnumbered(name: str) -> str:
    return _NUMBERED.sub("", name)
