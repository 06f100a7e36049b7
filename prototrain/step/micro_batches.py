"""Gradients over micro-batches, which are computed one after the other for one update."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import tensorflow as tf

from prototrain.data.batches import Batch, split_batch
from prototrain.step.trace import ScalarSummary, averaged, tower_trace
from prototrain.step.weights import as_float, share_of_tower, weighted


class Computed(NamedTuple):
    """The forward and backward pass of a batch, or of a part of it.

    Attributes:
        outputs: the model's scalars by name, and what is added to the loss unless there is a weight.
        gradients: of the loss; None where there is none.
        weight: what the loss is a mean over, a float64 scalar; None if all parts of a batch have the same weight.
        added: with a weight, what is added to the loss by name: the weight does not apply to it.
        added_gradients: of their sum.
    """

    outputs: dict[str, Any]
    gradients: list[Any]
    weight: tf.Tensor | None = None
    added: dict[str, Any] = {}  # noqa: RUF012 - of a tuple, and never changed
    added_gradients: list[Any] = []  # noqa: RUF012


def over_micro_batches(compute: Callable[[Batch], Computed], inputs: Batch, count: int) -> Computed:
    """Average over micro-batches that are computed one after the other, by their weights; traced.

    Args:
        compute: from a micro-batch to its scalars and gradients.
        inputs: a tower's batch.
        count: how many micro-batches it is divided into.
    """
    if count == 1:
        return compute(inputs)
    trace = tower_trace()
    total: tf.Tensor | None = None
    sums: Computed | None = None
    summaries: list[list[ScalarSummary]] = []
    weights: list[tf.Tensor] = []
    for number, part in enumerate(split_batch(inputs, count)):
        # Each waits for the one before, so that only one's activations are in memory.
        before = [] if sums is None else [gradient for gradient in sums.gradients if gradient is not None]
        with tf.control_dependencies(tf.nest.flatten(before, expand_composites=True)):
            part = tf.nest.map_structure(tf.identity, part, expand_composites=True)
        recorded: list[ScalarSummary] = []
        with nullcontext() if trace is None else trace.micro_batch(number, recorded):
            found = compute(part)
        outputs = {name: as_float(value) for name, value in found.outputs.items()}
        dtypes = {name: value.dtype for name, value in outputs.items()}
        gradients = found.gradients
        if found.weight is not None:
            total = found.weight if total is None else total + found.weight
            # Sums of float64 keep the digits of large weights.
            outputs = {n: weighted(tf.cast(value, tf.float64), found.weight) for n, value in outputs.items()}
            gradients = [weighted(gradient, found.weight) for gradient in gradients]
        found = Computed(outputs, gradients, found.weight, found.added, found.added_gradients)
        weights.append(tf.ones([], tf.float64) if found.weight is None else found.weight)
        summaries.append(recorded)
        sums = found if sums is None else _sum(sums, found)
    if trace is not None and summaries[0]:
        trace.summaries += averaged(summaries, weights)
    assert sums is not None
    parts = tf.constant(float(count))
    factor = None if total is None else tf.math.divide_no_nan(tf.ones([], tf.float64), total)

    def mean(value: Any) -> Any:
        return divide(value, parts) if factor is None else weighted(value, factor)

    return Computed(
        {name: tf.cast(mean(value), dtypes[name]) for name, value in sums.outputs.items()},
        [mean(gradient) for gradient in sums.gradients],
        total,
        {name: divide(value, parts) for name, value in sums.added.items()},
        [divide(gradient, parts) for gradient in sums.added_gradients],
    )


def for_all_towers(found: Computed, placement: Any) -> tuple[dict[str, Any], list[Any]]:
    """Scalars and gradients of this tower, whose plain means over the towers are those of the whole batch; traced.

    Args:
        found: for the tower's batch.
        placement: the towers.
    """
    trace = tower_trace()
    if found.weight is None:
        return found.outputs, found.gradients
    share = share_of_tower(found.weight, placement)
    outputs = {name: weighted(value, share) for name, value in found.outputs.items()}
    gradients = [weighted(gradient, share) for gradient in found.gradients]
    if trace is not None:
        trace.weight = None  # it is taken into account
        trace.multiply_summaries(share)
    if found.added:
        loss = tf.cast(outputs["loss"], tf.float32)
        outputs |= {**found.added, "loss_total": tf.add_n([loss, *found.added.values()])}
        gradients = [_add(*pair) for pair in zip(gradients, found.added_gradients, strict=True)]
    return outputs, gradients


def divide(gradient: Any, divisor: tf.Tensor) -> Any:
    """Divide a gradient, be it dense, sparse or None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(divide(gradient.values, divisor), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(divisor, gradient.dtype)


def _sum(first: Computed, second: Computed) -> Computed:
    def named(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        return {name: a[name] + value for name, value in b.items()}

    def listed(a: list[Any], b: list[Any]) -> list[Any]:
        return [_add(*pair) for pair in zip(a, b, strict=True)]

    return Computed(
        named(first.outputs, second.outputs),
        listed(first.gradients, second.gradients),
        first.weight,
        named(first.added, second.added),
        listed(first.added_gradients, second.added_gradients),
    )


def _add(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, tf.IndexedSlices) and isinstance(second, tf.IndexedSlices):
        values = tf.concat([first.values, second.values], 0)
        return tf.IndexedSlices(values, tf.concat([first.indices, second.indices], 0), first.dense_shape)
    return tf.convert_to_tensor(first) + tf.convert_to_tensor(second)
