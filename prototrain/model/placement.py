"""Placement of batches, gradients and variables on towers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from prototrain.data.batches import Batch, split_batch
from prototrain.model.layer_cache import LayerCache
from prototrain.towers import is_local

PACKED_ELEMENTS = 2**14
"""Maximum size of tensors that are averaged in one vector; packing larger tensors takes longer than it saves."""


class Placement:
    """Towers placed by a TensorFlow strategy, each with its own copy of the variables.

    Args:
        strategy: places the towers; by default one tower on the default device.
        first_tower: index of this process's first tower among those of all processes.
        own_towers: number of this process's towers, if it reads only their data.
        combines_by_copies: whether ordinary ops, which may fail, combine the values of several towers.

    Attributes:
        strategy: the TensorFlow strategy.
        towers: number of towers in all processes.
        parts: number of towers that a batch of this process is divided among.
        may_fail: whether a step may run after a failed one; False if collective ops would wait forever.
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
        self.parts: int = self.towers if own_towers is None else own_towers
        self.may_fail = self.towers == 1 or combines_by_copies
        self._first_part = 0 if own_towers is None else first_tower
        self._cache = LayerCache()
        self._variables: Mapping[str, tf.Variable] = {}

    def make_variable(self, make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        """Make a variable of the model or of an optimizer: call `make` with arguments of `tf.Variable`."""
        return make(**arguments)

    def tower_to_build(self) -> int | None:
        """Return the index of the tower that `build` is called for, or None to ask TensorFlow's strategy."""
        return None

    def attach(self, variables: Mapping[str, tf.Variable], cache: LayerCache) -> None:
        """Attach a built model."""
        self._variables, self._cache = variables, cache

    def run(self, function: Callable[[Any], Any], inputs: Batch) -> Any:
        """Call a function in every tower with its part of a global batch; traced."""
        if self.parts == 1:
            return self.strategy.run(function, args=(inputs,))
        with tf.device("CPU:0"):  # the batch is on the host: each tower receives only its part
            parts = split_batch(inputs, self.parts)
        of_towers = self.strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group - self._first_part]
        )
        # Copies, so that ops that wait for a batch wait on the device of their tower.
        return self.strategy.run(lambda part: function(_copied(part)), args=(of_towers,))

    def mean(self, values: list[Any]) -> list[Any]:
        """Average tensors over all towers, from inside a tower; traced. The results are bitwise equal on all of them.

        Called with lists of gradients, dense or sparse, and with scalars, float64 weights and moving statistics.
        """
        return values if self.towers == 1 or not values else _all_reduce_mean(values)

    def moving_statistics(self) -> list[tf.Variable]:
        """Return the statistics that each tower updates from its part of a batch; each step averages them."""
        frozen, found = self._cache.frozen, self._variables.values()
        return [v for v in found if v.dtype.is_floating and is_local(v) and id(v) not in frozen]


class CentralPlacement(Placement):
    """Towers that share one copy of the variables, on the `parameter_device`."""

    def __init__(self, devices: Sequence[str], parameter_device: str) -> None:
        super().__init__(tf.distribute.experimental.CentralStorageStrategy(list(devices), parameter_device))

    def make_variable(self, make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        # All towers assign to one copy, so TensorFlow must know how to combine their values.
        if arguments.get("aggregation") in (None, tf.VariableAggregation.NONE):
            kind = tf.as_dtype(arguments.get("dtype") or tf.float32)
            mean, first = tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA
            arguments["aggregation"] = mean if kind.is_floating else first
        return make(**arguments)


class AsyncPlacement(Placement):
    """Towers that share one copy of the variables and do not wait for each other; each sees a whole batch.

    TensorFlow's strategy sees a single tower; `on_tower` selects the tower to build.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__()
        self.devices = list(devices)
        self._building = 0

    @contextmanager
    def on_tower(self, index: int) -> Iterator[None]:
        """Context manager for tracing on one of the towers."""
        outer, self._building = self._building, index
        try:
            with tf.device(self.devices[index]):
                yield
        finally:
            self._building = outer

    def tower_to_build(self) -> int | None:
        return self._building


def _copied(values: Any) -> Any:
    return tf.nest.map_structure(tf.identity, values, expand_composites=True)


def _all_reduce_mean(values: list[Any]) -> list[Any]:
    """Average tensors over all towers of the current strategy, from inside a tower."""
    # Copies, so that TensorFlow knows that each tensor is on the tower's device.
    found: list[Any] = [_copied(value) for value in values]
    context = tf.distribute.get_replica_context()
    # Collective ops pack only tensors of the same kind.
    kinds = [(isinstance(value, tf.IndexedSlices), value.dtype) for value in found]
    for kind in dict.fromkeys(kinds):
        places = [place for place, other in enumerate(kinds) if other == kind and _elements(found[place]) != 0]
        # Small tensors are packed into one vector: passing a tensor between devices takes as long as several ops.
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
    """Return the static number of elements; None if it is unknown or the gradient is sparse."""
    return None if isinstance(value, tf.IndexedSlices) else value.shape.num_elements()
