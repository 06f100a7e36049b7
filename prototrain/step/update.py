"""Gradients from the micro-batches of a tower into the variables: accumulated, averaged, processed, applied."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from prototrain.data.batches import Batch, split_batch
from prototrain.errors import ModelError
from prototrain.gradient_processors import drop_missing, global_norm, summed, variable_name
from prototrain.optimizers import update_if, updates_all_rows
from prototrain.step.arithmetic import add, as_float, divide, share_of_tower, weighted
from prototrain.step.nonfinite import Update
from prototrain.step.trace import tower_trace
from prototrain.tf_private import expect_averages

Pairs = Sequence[tuple[Any, Any]]


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
    summaries = [] if trace is None else trace.summaries
    start = len(summaries)
    total: tf.Tensor | None = None
    sums: list[list[Any]] = []  # of outputs and summaries, gradients, added losses, their gradients
    for number, part in enumerate(split_batch(inputs, count)):
        # Each waits for the one before, so that only one's activations are in memory.
        before = [gradient for gradient in sums[1] if gradient is not None] if sums else []
        with tf.control_dependencies(tf.nest.flatten(before, expand_composites=True)):
            part = tf.nest.map_structure(tf.identity, part, expand_composites=True)
        with tf.summary.record_if(False) if number else nullcontext():
            found = compute(part)
        outputs, gradients, weight = [*map(as_float, found.outputs.values())], found.gradients, found.weight
        outputs += [one.value for one in summaries[start:]]
        if number == 0:
            of_first = summaries[start:]  # others would not record
        del summaries[start:]
        dtypes = [value.dtype for value in outputs]
        if weight is not None:
            total = weight if total is None else total + weight
            # Sums of float64 keep the digits of large weights.
            outputs = [weighted(tf.cast(value, tf.float64), weight) for value in outputs]
            gradients = [weighted(gradient, weight) for gradient in gradients]
        parts = [outputs, gradients, list(found.added.values()), found.added_gradients]
        sums = [list(map(add, *pair)) for pair in zip(sums, parts, strict=True)] if sums else parts
    number_of_parts = tf.constant(float(count))
    factor = None if total is None else tf.math.divide_no_nan(tf.ones([], tf.float64), total)

    def mean(value: Any) -> Any:
        return divide(value, number_of_parts) if factor is None else weighted(value, factor)

    outputs, gradients, added, added_gradients = sums
    means = [tf.cast(mean(value), dtype) for value, dtype in zip(outputs, dtypes, strict=True)]
    count_of_outputs = len(found.outputs)
    summaries += [replace(one, value=value) for one, value in zip(of_first, means[count_of_outputs:], strict=True)]
    return Computed(
        dict(zip(found.outputs, means[:count_of_outputs], strict=True)),
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
        trace.set_summaries([weighted(one.value, share) for one in trace.summaries])
    if found.added:
        loss = tf.cast(outputs["loss"], tf.float32)
        outputs |= {**found.added, "loss_total": tf.add_n([loss, *found.added.values()])}
        gradients = list(map(add, gradients, found.added_gradients))
    return outputs, gradients


class GradientNotes:
    """Which variables were to be updated and had no gradient, over all updates that a step has."""

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._missing: dict[str, None] = {}

    def take(self, pairs: Pairs) -> None:
        """Look at what an update is given; traced."""
        for gradient, variable in pairs:
            if gradient is None:
                self._missing[variable_name(variable)] = None
            else:
                self._found.add(variable_name(variable))

    def lines(self, processors: Sequence[Any]) -> list[str]:
        """What a user should know, once the step is traced.

        Args:
            processors: through which the gradients went.
        """
        said = [
            f"WARNING: {type(processor).__name__}: {pattern!r} matches no variable that has a gradient; it must match "
            f"whole names, such as {', '.join(sorted(self._found)[:3])}"
            for processor in (processors if self._found else ())
            for pattern in getattr(processor, "unmatched", ())
        ]
        missing = [name for name in self._missing if name not in self._found]
        if missing:
            names = textwrap.shorten(", ".join(missing), 300, placeholder=" ...")
            said.append(f"WARNING: the loss does not depend on {names}, which training leaves as it is")
        return said


def apply_gradients(
    gradients_and_variables: Pairs,
    loss: tf.Tensor,
    optimizer: keras.optimizers.Optimizer,
    *,
    placement: Any,
    processors: Sequence[Callable[[Pairs], Pairs]],
    record_norm: bool,
    notes: GradientNotes | None = None,
    when: tf.Tensor | bool | None = None,
) -> None:
    """Update variables with the mean of all towers' gradients; traced.

    Args:
        gradients_and_variables: pairs; a variable whose gradient is None is left out.
        loss: what the gradients are of, a scalar.
        optimizer: applies them.
        placement: the towers.
        processors: from and to such pairs, called in order.
        record_norm: whether the step gets the scalar "gradient_norm".
        notes: is told which variables have a gradient.
        when: a scalar bool, the same in all towers: whether to update; always if None.

    Raises:
        ModelError: there are no pairs, no variable has a gradient, `when` is no scalar bool, or the call is inside a
            `tf.cond` or a loop.
    """
    trace = tower_trace()
    if trace is not None and tf.compat.v1.get_default_graph() is not trace.graph:
        raise ModelError(
            "apply_gradients is called inside a tf.cond, a loop or a tf.function; call it outside, and give the "
            "condition as apply_gradients(..., when=condition)"
        )
    gradients_and_variables = list(gradients_and_variables)
    if not gradients_and_variables:
        raise ModelError("apply_gradients: the list of gradients and variables is empty")
    condition = None if when is None else _scalar_bool(when)
    pairs: Pairs = drop_missing(gradients_and_variables)
    if notes is not None:
        notes.take(gradients_and_variables)
    if not pairs:
        raise ModelError("the loss does not depend on any trainable variable")
    values = [*(gradient for gradient, _ in pairs), loss]
    *gradients, loss = placement.mean(values if trace is None else trace.weighted(values, placement))
    # Summed over the towers' rows too, before anything that is not linear in the gradient.
    dense = updates_all_rows(optimizer)
    pairs = [
        (summed(gradient, dense=dense), variable) for gradient, (_, variable) in zip(gradients, pairs, strict=True)
    ]
    if record_norm and trace is not None:
        trace.add_scalar("gradient_norm", global_norm(pairs))
    for process in processors:
        pairs = process(pairs)
    pairs = drop_missing(pairs)
    if placement.towers > 1:
        expect_averages(optimizer)
    processed, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
    if trace is None:  # outside of a compiled step there is no guard
        update_if(condition, optimizer, processed, variables)
    else:
        trace.guard.apply(trace, Update(optimizer, processed, variables, loss, condition))


def _scalar_bool(when: Any) -> tf.Tensor:
    condition = tf.convert_to_tensor(when)
    if condition.dtype != tf.bool or condition.shape.rank != 0:
        found = f"{condition.dtype.name} of shape {condition.shape}"
        raise ModelError(f"apply_gradients: when must be a scalar bool, not {found}")
    return condition
