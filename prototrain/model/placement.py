"""Placement of one batch, its gradients and the variables on towers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tensorflow as tf

from prototrain.data.batches import Batch, split_batch
from prototrain.model.build_call import base_name
from prototrain.model.layer_cache import LayerCache
from prototrain.towers import OF_TOWER, components, is_local, is_seed, seed_of_tower

PACKED_ELEMENTS = 2**14
"""Tensors of at most so many elements are averaged together; larger ones would take longer to pack than to pass on."""


class Placement:
    """Towers as a TensorFlow strategy places them, each with its own copy of the variables.

    Args:
        strategy: places the towers; one tower on the default device if None.
        first_tower: the index of this process's first tower among those of all processes.
        own_towers: the number of this process's towers, if it reads the data of these only.
        combines_by_copies: whether values of several towers are combined by ordinary ops, which may fail.

    Attributes:
        towers: the number of towers in all processes.
        parts: the number of towers that a batch read here is divided among.
        may_fail: whether the next step can run after a failed one: collective ops would still wait.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy | None = None,
        *,
        first_tower: int = 0,
        own_towers: int | None = None,
        combines_by_copies: bool = False,
    ) -> None:
        self.strategy = tf.distribute.get_strategy() if strategy is None else strategy
        self.towers: int = self.strategy.num_replicas_in_sync
        self.first_tower = first_tower
        self.parts: int = self.towers if own_towers is None else own_towers
        self.may_fail = self.towers == 1 or combines_by_copies
        self._first_part = 0 if own_towers is None else first_tower
        self._cache = LayerCache()
        self._variables: Mapping[str, tf.Variable] = {}

    # -- building -----------------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[Any]:
        """The scope that variables are made in."""
        scope: AbstractContextManager[Any] = self.strategy.scope()
        return scope

    def declare_variable(self, **arguments: Any) -> dict[str, Any]:
        """The arguments of `tf.Variable` for a variable of the model, as the strategy needs them."""
        return arguments

    def tower_to_build(self) -> int | None:
        """The index of the tower that `build` is called for, or None if TensorFlow's strategy knows it."""
        return None

    def adopt(self, variables: dict[str, tf.Variable], cache: LayerCache) -> dict[str, tf.Variable]:
        """Take a model that was built, and let the random layers of every tower draw other numbers.

        Args:
            variables: the model's, by name; a shared seed is replaced by that of the first tower.
            cache: the layers and variables of the model.

        Returns:
            by name, for a checkpoint, the variables that only one tower has.
        """
        self._variables, self._cache = variables, cache
        return self._separate(variables)

    def _separate(self, variables: dict[str, tf.Variable]) -> dict[str, tf.Variable]:
        found = {}
        for name, variable in variables.items():
            copies = components(variable)
            if self.towers == 1 or not is_local(variable) or variable.dtype.is_floating:
                continue
            initial = copies[0].numpy()
            for index, copy in enumerate(copies, self.first_tower):
                if index > 0:
                    copy.assign(seed_of_tower(initial, index) if is_seed(name, copy) else initial)
                    found[f"{name}{OF_TOWER}{index}"] = copy
        return found

    def _add_seeds(self, variables: Mapping[str, tf.Variable], towers: range) -> dict[str, tf.Variable]:
        """Give each of several towers that share all variables a seed; returns the new variables by name."""
        found = {}
        for name, variable in variables.items():
            if is_seed(name, variable):
                first = tf.convert_to_tensor(variable).numpy()
                for index in towers:
                    own = tf.Variable(seed_of_tower(first, index), trainable=False, name=base_name(variable))
                    self._cache.of_tower.setdefault(index, {})[base_name(variable)] = own
                    found[f"{name}{OF_TOWER}{index}" if index else name] = own
        return found

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, function: Callable[[Any], Any], inputs: Batch) -> Any:
        """Call a function in every tower with its part of a global batch; traced."""
        if self.parts == 1:
            return self.strategy.run(function, args=(inputs,))
        # Copies, so that what waits for a batch in a tower waits on its own device.
        return self.strategy.run(lambda part: function(_copied(part)), args=(self._split(inputs),))

    def _split(self, inputs: Batch) -> Any:
        with tf.device("CPU:0"):  # where it was read: only its own part goes to each tower
            parts = split_batch(inputs, self.parts)
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group - self._first_part]
        )

    def local_results(self, value: Any) -> Sequence[Any]:
        """The results of the towers of this process."""
        results: Sequence[Any] = self.strategy.experimental_local_results(value)
        return results

    def mean(self, values: list[Any]) -> list[Any]:
        """Average tensors, dense or sparse, over all towers, from inside one; traced. All towers get the same bits."""
        return values if self.towers == 1 or not values else _all_reduce_mean(values)

    def moving_statistics(self) -> list[tf.Variable]:
        """The variables that each tower assigns from its own part of a batch, and that are averaged after each step."""
        frozen, found = self._cache.frozen, self._variables.values()
        return [v for v in found if v.dtype.is_floating and is_local(v) and id(v) not in frozen]

    def own_variables(self) -> list[tf.Variable]:
        """The seeds of single towers, where the towers share all other variables."""
        return [variable for own in self._cache.of_tower.values() for variable in own.values()]


class CentralPlacement(Placement):
    """Towers that read one copy of the variables.

    Args:
        devices: of the towers, such as ``CPU:0``.
        parameter_device: the device of the variables.
    """

    def __init__(self, devices: Sequence[str], parameter_device: str) -> None:
        super().__init__(tf.distribute.experimental.CentralStorageStrategy(list(devices), parameter_device))

    def declare_variable(self, **arguments: Any) -> dict[str, Any]:
        # There is one copy that all towers assign, so TensorFlow asks how to combine what they assign.
        if arguments.get("trainable") is False and arguments.get("aggregation") in (None, tf.VariableAggregation.NONE):
            kind = tf.as_dtype(arguments.get("dtype") or tf.float32)
            mean, first = tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA
            arguments["aggregation"] = mean if kind.is_floating else first
        return arguments

    def _separate(self, variables: dict[str, tf.Variable]) -> dict[str, tf.Variable]:
        found = self._add_seeds(variables, range(self.towers)) if self.towers > 1 else {}
        variables.update({name: own for name, own in found.items() if name in variables})  # the first tower's
        return found


class OwnPacePlacement(Placement):
    """Towers that share one copy of the variables and do not wait for each other; each sees a whole batch.

    For TensorFlow's strategies this is one tower; `on_tower` sets which of them is being built.

    Args:
        devices: of the towers, such as ``CPU:0``.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__()
        self.devices = list(devices)
        self._building = 0

    @contextmanager
    def on_tower(self, index: int) -> Iterator[None]:
        """Trace what follows for one of the towers."""
        outer, self._building = self._building, index
        try:
            with tf.device(self.devices[index]):
                yield
        finally:
            self._building = outer

    def tower_to_build(self) -> int | None:
        return self._building

    def _separate(self, variables: dict[str, tf.Variable]) -> dict[str, tf.Variable]:
        return self._add_seeds(variables, range(1, len(self.devices)))


def _copied(values: Any) -> Any:
    return tf.nest.map_structure(tf.identity, values, expand_composites=True)


def _all_reduce_mean(values: list[Any]) -> list[Any]:
    """Average tensors over all towers of the strategy whose tower this is called in."""
    # Copies, since TensorFlow must know that a tensor is on the tower's device.
    found: list[Any] = [_copied(value) for value in values]
    context = tf.distribute.get_replica_context()
    # Collective ops pack tensors of one kind only.
    kinds = [(isinstance(value, tf.IndexedSlices), value.dtype) for value in found]
    for kind in dict.fromkeys(kinds):
        places = [place for place, other in enumerate(kinds) if other == kind and _elements(found[place]) != 0]
        # What is small goes as one vector: to pass a tensor between devices takes as long as some ops.
        small = [place for place in places if _elements(found[place]) in range(1, PACKED_ELEMENTS + 1)]
        alone = [place for place in places if place not in small]
        vectors = [tf.concat([tf.reshape(found[place], [-1]) for place in small], 0)] if small else []
        together = [found[place] for place in alone] + vectors
        averaged = list(context.all_reduce(tf.distribute.ReduceOp.MEAN, together)) if together else []
        if small:
            parts = tf.split(averaged.pop(), [_elements(found[place]) for place in small])
            for place, part in zip(small, parts, strict=True):
                found[place] = tf.reshape(part, found[place].shape)
        for place, value in zip(alone, averaged, strict=True):
            found[place] = value
    return found


def _elements(value: Any) -> int | None:
    """How many there are, where that is known; None for a sparse gradient."""
    return None if isinstance(value, tf.IndexedSlices) else value.shape.num_elements()
