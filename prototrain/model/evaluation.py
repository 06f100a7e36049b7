"""Compiled evaluation of datasets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from prototrain.checkpoint.state import preserve_values
from prototrain.checkpoint.values import preserve_random_state
from prototrain.data.batches import WHY_EMPTY, Batch, counted_examples
from prototrain.data.iterator import bounded
from prototrain.data.pipeline import reshuffles
from prototrain.errors import DataError, ModelError, StepError
from prototrain.model.layer_cache import LayerCache
from prototrain.step.trace import compiled
from prototrain.step.variables import StopVariable, is_scratch
from prototrain.system.signals import StopRequest, run_interruptibly
from prototrain.system.terminal import announcing
from prototrain.system.tracebacks import cause, failed_stage
from prototrain.tf_private import is_generator_state
from prototrain.towers import is_seed

REHEARSED = 2
"""Number of batches to rehearse an evaluation with; variables are created in the first one only."""


class CompiledPass:
    """A compiled pass over the batches of a dataset, or over the first of them, that sums vectors.

    `measure` maps a batch to one vector for each of `dtypes`, always of the same length; traced. `layers` are the
    model's.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        measure: Callable[[Batch], Sequence[Any]],
        dtypes: Sequence[tf.DType],
        layers: LayerCache,
    ) -> None:
        self._layers = layers
        self._given = dataset
        self._dataset = bounded(dataset)
        self._measure = measure
        self._dtypes = list(dtypes)
        self._stop = StopVariable()
        self._call = compiled(self._iterate)

    def run(self, stop: StopRequest, batches: int = 0) -> tuple[int, list[tf.Tensor]] | None:
        """Return the number of batches and the sums, or None if a stop was requested before the end.

        The pass leaves the seeds and states of layers as they are, so that training does not depend on it. `batches` is
        the maximum number of batches; 0 for all.
        """
        # A metric, whose variables are combined when they are read, and a variable of `build` keep what they measure.
        of_layers, on_read = self._layers.handles(), tf.VariableSynchronization.ON_READ
        variables = [one for one in self._graph().variables if not one.trainable and not is_scratch(one)]
        states = [v for v in variables if id(v.handle) in of_layers and v.synchronization != on_read]
        with preserve_values([*states, *(v for v in variables if is_seed(v.name, v) or is_generator_state(v))]):
            dataset = self._dataset.take(batches) if batches else self._dataset
            return self._run(dataset.prefetch(1), stop)

    def _graph(self) -> Any:
        return self._call.get_concrete_function(tf.data.IteratorSpec(self._dataset.element_spec)).graph

    def _run(self, dataset: tf.data.Dataset, stop: StopRequest) -> tuple[int, list[tf.Tensor]] | None:
        self._stop.set(stop.signum is not None)
        with stop.notifying(self._stop.set):
            count, *sums = self._call(iter(dataset))
        return None if stop.signum is not None else (int(count), sums)

    def rehearse(self, name: str, stop: StopRequest, batches: int = 0) -> tuple[int, list[tf.Tensor]] | None:
        """Trace the pass and run it on at most two batches, to find errors early without side effects.

        Data that is reshuffled in each pass is not read, since reading would change the order of the next pass; the
        result is then None.
        """
        with preserve_random_state():
            graph = self._graph()
            if reshuffles(self._dataset):
                return None
            read = self._given.take(min(batches or REHEARSED, REHEARSED)).cache()  # read once
            what = f"the first batches of {name!r}"
            with announcing(f"waiting for {what}", stop.announce):
                run_interruptibly(lambda: sum(1 for _ in read), check=stop.check)
            with preserve_values(graph.variables):
                return self._run(read, stop)

    def _iterate(self, iterator: Any) -> tuple[tf.Tensor, ...]:
        """Sum the vectors of all batches; traced."""

        def has_more(more: Any, *_: Any) -> Any:
            return more & ~self._stop.value

        def body(more: Any, count: Any, *sums: Any) -> tuple[Any, ...]:
            batch = iterator.get_next_as_optional()

            def add() -> tuple[Any, ...]:
                found = self._measure(batch.get_value())
                return (tf.constant(True), count + 1, *map(_add, sums, found))

            after: tuple[Any, ...] = tf.cond(batch.has_value(), add, lambda: (tf.constant(False), count, *sums))
            return after

        first = (tf.constant(True), tf.constant(0), *(tf.zeros([0], dtype) for dtype in self._dtypes))
        shapes = tuple(tf.TensorShape([] if value.shape.rank == 0 else [None]) for value in first)
        _, *found = tf.while_loop(has_more, body, first, shape_invariants=shapes)
        return tuple(found)


def _add(sums: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    # The sums start as empty vectors, since their length is known only after the model is traced.
    return tf.pad(sums, [[0, tf.size(values) - tf.size(sums)]]) + values


def require_end(name: str, dataset: tf.data.Dataset) -> None:
    """Raise a DataError if a dataset is infinite; datasets of unknown length and other classes pass."""
    if isinstance(dataset, tf.data.Dataset) and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise DataError(f"dataset {name!r} is infinite; remove its repeat(), or limit it with batches= or take()")


class Evaluation:
    """Averages a model's scalars over a dataset, in float64.

    The weight of a batch is the model's "loss_weight", or the number of examples. If the first dimensions of the
    tensors differ in any batch, all batches have the same weight. `evaluate_batch` maps a batch to the model's scalars
    by name, and their weight or None; traced.
    """

    def __init__(
        self,
        name: str,
        dataset: tf.data.Dataset,
        evaluate_batch: Callable[[Batch], tuple[dict[str, tf.Tensor], tf.Tensor | None]],
        layers: LayerCache,
    ) -> None:
        self.examples = 0  # in the last pass
        self._name = name
        self._evaluate_batch = evaluate_batch
        self._names: list[str] = []
        self._has_weight = False
        self._pass = CompiledPass(dataset, self._measure, [tf.float64] * 3, layers)

    def run(self, stop: StopRequest, batches: int, *, step: int) -> dict[str, float] | None:
        """Return the scalars by name, or None if a stop was requested before the end.

        Raises:
            DataError: the dataset is empty, or all weights are 0.
            ModelError: a weight is negative or NaN.
            StepError: reading or evaluating failed.
        """
        found = self._checked(lambda: self._pass.run(stop, batches), step)
        if found is None:
            return None
        count, (totals, by_weight, alike) = found
        examples, different, weight = totals.numpy()
        self.examples = int(examples)
        if not different and not weight:
            what = "has batches whose 'loss_weight' is 0 only" if self._has_weight else "has no examples"
            raise DataError(f"dataset {self._name!r} {what}: there is no mean")
        if math.isnan(weight):
            raise ModelError(f"evaluating {self._name!r}: build() returned a negative or NaN 'loss_weight'")
        means = alike / count if different else by_weight / weight
        return dict(zip(self._names, means.numpy().tolist(), strict=True))

    def rehearse(self, stop: StopRequest, batches: int, *, step: int) -> None:
        """Evaluate at most two batches to find errors early; raises like `run`."""
        self._checked(lambda: self._pass.rehearse(self._name, stop, batches), step)

    def _checked(self, run: Callable[[], tuple[int, list[tf.Tensor]] | None], step: int) -> Any:
        try:
            found = run()
        except tf.errors.OpError as error:
            raise StepError(
                f"evaluating {self._name!r} at step {step} failed in the {failed_stage(error)}: {cause(error)}"
            ) from error
        if found is not None and not found[0]:
            raise DataError(f"dataset {self._name!r} is empty{WHY_EMPTY}")
        return found

    def _measure(self, inputs: Batch) -> tuple[Any, ...]:
        """Return [examples, whether first dimensions differ, weight], weighted scalars, and scalars; traced."""
        values, weight = self._evaluate_batch(inputs)
        examples, agree = counted_examples(inputs)
        self._names, self._has_weight = list(values), weight is not None
        different = tf.constant(0.0, tf.float64) if weight is not None else tf.cast(~agree, tf.float64)
        weight = tf.cast(examples, tf.float64) if weight is None else weight
        scalars = [tf.cast(value, tf.float64) for value in values.values()]
        vector = tf.stack(scalars) if scalars else tf.zeros([0], tf.float64)
        # A batch with weight 0 may have divided by it.
        by_weight = tf.math.multiply_no_nan(vector, weight)
        return tf.stack([tf.cast(examples, tf.float64), different, weight]), by_weight, vector
