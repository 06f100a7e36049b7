"""Gradients over micro-batches, which are computed one after the other for one update."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import tensorflow as tf

from prototrain.data.batches import Batch, split_batch
from prototrain.step.arithmetic import add, as_float, divide, share_of_tower, weighted
from prototrain.step.trace import ScalarSummary, averaged, tower_trace


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
    sums: list[list[Any]] = []  # of outputs, gradients, added losses, their gradients
    summaries: list[list[ScalarSummary]] = []
    weights: list[tf.Tensor] = []
    for number, part in enumerate(split_batch(inputs, count)):
        # Each waits for the one before, so that only one's activations are in memory.
        before = [gradient for gradient in sums[1] if gradient is not None] if sums else []
        with tf.control_dependencies(tf.nest.flatten(before, expand_composites=True)):
            part = tf.nest.map_structure(tf.identity, part, expand_composites=True)
        recorded: list[ScalarSummary] = []
        with nullcontext() if trace is None else trace.micro_batch(number, recorded):
            found = compute(part)
        outputs, gradients, weight = (
            [as_float(value) for value in found.outputs.values()],
            found.gradients,
            found.weight,
        )
        dtypes = [value.dtype for value in outputs]
        if weight is not None:
            total = weight if total is None else total + weight
            # Sums of float64 keep the digits of large weights.
            outputs = [weighted(tf.cast(value, tf.float64), weight) for value in outputs]
            gradients = [weighted(gradient, weight) for gradient in gradients]
        weights.append(tf.ones([], tf.float64) if weight is None else weight)
        summaries.append(recorded)
        parts = [outputs, gradients, list(found.added.values()), found.added_gradients]
        sums = [list(map(add, *pair)) for pair in zip(sums, parts, strict=True)] if sums else parts
    if trace is not None and summaries[0]:
        trace.summaries += averaged(summaries, weights)
    number_of_parts = tf.constant(float(count))
    factor = None if total is None else tf.math.divide_no_nan(tf.ones([], tf.float64), total)

    def mean(value: Any) -> Any:
        return divide(value, number_of_parts) if factor is None else weighted(value, factor)

    outputs, gradients, added, added_gradients = sums
    means = [tf.cast(mean(value), dtype) for value, dtype in zip(outputs, dtypes, strict=True)]
    return Computed(
        dict(zip(found.outputs, means, strict=True)),
        [mean(gradient) for gradient in gradients],
        total,
        {name: divide(value, number_of_parts) for name, value in zip(found.added, added, strict=True)},
        [divide(gradient, number_of_parts) for gradient in added_gradients],
    )


def for_all_towers(found: Computed, placement: Any) -> tuple[dict[str, Any], list[Any]]:
    """Scalars and gradients of this tower, whose plain means over the towers are those of the whole batch; traced.

    Args:
        found: for the tower's batch.
        placement: the towers.
    """
    if found.weight is None:
        return found.outputs, found.gradients
    share = share_of_tower(found.weight, placement)
    outputs = {name: weighted(value, share) for name, value in found.outputs.items()}
    gradients = [weighted(gradient, share) for gradient in found.gradients]
    trace = tower_trace()
    if trace is not None:
        trace.weight = None  # it is taken into account
        trace.multiply_summaries(share)
    if found.added:
        loss = tf.cast(outputs["loss"], tf.float32)
        outputs |= {**found.added, "loss_total": tf.add_n([loss, *found.added.values()])}
        gradients = list(map(add, gradients, found.added_gradients))
    return outputs, gradients
