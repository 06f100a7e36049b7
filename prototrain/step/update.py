"""Updates of variables: gradients are accumulated over micro-batches, averaged over towers, processed and applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from prototrain.checkpoint.state import unique_name
from prototrain.data.batches import Batch, split_batch
from prototrain.errors import ModelError
from prototrain.gradient_processors import divide, drop_missing, global_norm, on_values, summed, variable_name
from prototrain.optimizers import update_if, updates_all_rows
from prototrain.step.nonfinite import Update
from prototrain.step.trace import TowerTrace, tower_trace
from prototrain.step.variables import SHARED_SCALARS
from prototrain.system.terminal import shorten_list
from prototrain.tf_private import expect_averages

Pairs = Sequence[tuple[Any, Any]]


class BatchGradients(NamedTuple):
    """Results of the forward and backward pass of a batch, or of a part of it.

    `added` has the losses that a trainer adds to the model's loss, by name. The weight does not apply to them; without
    a weight `gradients` are those of the sum.
    """

    outputs: dict[str, Any]  # the model's scalars by name
    gradients: list[Any]  # None for a variable without one
    weight: tf.Tensor | None = None  # of the loss, float64; None if all parts of a batch have the same weight
    added: dict[str, Any] = {}  # noqa: RUF012 - a field of a tuple, never changed
    added_gradients: list[Any] = []  # noqa: RUF012 - of the sum of `added`; empty without a weight


def accumulate_micro_batches(compute: Callable[[Batch], BatchGradients], inputs: Batch, count: int) -> BatchGradients:
    """Compute a tower's batch in `count` successive micro-batches and return their weighted average; traced."""
    if count == 1:
        return compute(inputs)
    total: tf.Tensor | None = None
    sums: list[list[Any]] = []  # outputs, gradients, added losses, gradients of the added losses
    for number, part in enumerate(split_batch(inputs, count)):
        # Each micro-batch waits for the one before, so that only one has its activations in memory.
        before = [gradient for gradient in sums[1] if gradient is not None] if sums else []
        with tf.control_dependencies(tf.nest.flatten(before, expand_composites=True)):
            part = tf.nest.map_structure(tf.identity, part, expand_composites=True)
        with tf.summary.record_if(False) if number else nullcontext():
            found = compute(part)
        outputs, gradients, weight = [*map(_as_float, found.outputs.values())], found.gradients, found.weight
        dtypes = [value.dtype for value in outputs]
        if weight is not None:
            total = weight if total is None else total + weight
            # float64 sums keep the digits of large weights.
            outputs = [_weighted(tf.cast(value, tf.float64), weight) for value in outputs]
            gradients = [_weighted(gradient, weight) for gradient in gradients]
        parts = [outputs, gradients, list(found.added.values()), found.added_gradients]
        sums = [list(map(_add, *pair)) for pair in zip(sums, parts, strict=True)] if sums else parts
    number_of_parts = tf.constant(float(count))
    factor = None if total is None else tf.math.divide_no_nan(tf.ones([], tf.float64), total)

    def mean(value: Any) -> Any:
        return divide(value, number_of_parts) if factor is None else _weighted(value, factor)

    outputs, gradients, added, added_gradients = sums
    means = [tf.cast(mean(value), dtype) for value, dtype in zip(outputs, dtypes, strict=True)]
    return BatchGradients(
        dict(zip(found.outputs, means, strict=True)),
        [mean(gradient) for gradient in gradients],
        total,
        {name: divide(value, number_of_parts) for name, value in zip(found.added, added, strict=True)},
        [divide(gradient, number_of_parts) for gradient in added_gradients],
    )


def scale_for_towers(found: BatchGradients, placement: Any) -> tuple[dict[str, Any], list[Any]]:
    """Scale scalars and gradients of a tower, to make their means over towers those of the whole batch; traced."""
    outputs, gradients = found.outputs, found.gradients
    if found.weight is not None:
        fraction = _fraction(found.weight, placement)
        outputs = {name: _weighted(value, fraction) for name, value in outputs.items()}
        gradients = [_weighted(gradient, fraction) for gradient in gradients]
        if found.added:
            gradients = list(map(_add, gradients, found.added_gradients))
        if (trace := tower_trace()) is not None:
            trace.weight = None  # it has been applied
    if found.added:
        # Not the mean of the parts' sums: TensorFlow's optimizer would add up all of their terms in any order.
        loss = tf.cast(outputs["loss"], tf.float32)
        outputs = {**outputs, **found.added, "loss_total": tf.add_n([loss, *found.added.values()])}
    return outputs, gradients


def weighted_outputs(trace: TowerTrace, outputs: Mapping[str, Any], placement: Any) -> dict[str, Any]:
    """Return the scalars of a `train_step` multiplied by the tower's share of the weight; traced."""
    if trace.weight is None:
        return dict(outputs)
    fraction = _fraction(trace.weight, placement)
    return {name: value if name in SHARED_SCALARS else _weighted(value, fraction) for name, value in outputs.items()}


def without_weight(trace: TowerTrace, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars of a step, as NaN if all of its weights are 0, since there is no mean; traced."""
    empty = trace.has_no_weight
    if empty is None:
        return dict(outputs)

    def or_nan(value: Any) -> tf.Tensor:
        tensor = _as_float(value)
        return tf.where(empty, tf.constant(float("nan"), tensor.dtype), tensor)

    return {name: value if name in SHARED_SCALARS else or_nan(value) for name, value in outputs.items()}


def _fraction(weight: tf.Tensor, placement: Any) -> tf.Tensor:
    """Return the weight of this tower divided by the mean weight of all towers, or 0 if all weights are 0; traced.

    The plain mean over the towers of values multiplied by it is their weighted mean.
    """
    (mean,) = placement.mean([weight])
    if (trace := tower_trace()) is not None:
        trace.has_no_weight = tf.equal(mean, 0.0)
    return tf.math.divide_no_nan(weight, mean)


def _weighted(value: Any, factor: tf.Tensor) -> Any:
    """Multiply a scalar or a gradient by a factor.

    0 times NaN is 0, since a part with weight 0 may have divided by its weight.
    """

    def multiply(value: Any) -> tf.Tensor:
        tensor = _as_float(value)
        if tensor.shape.rank == 0:  # float64 is cheap here, and keeps the digits of sums
            return tf.cast(tf.math.multiply_no_nan(tf.cast(tensor, tf.float64), factor), tensor.dtype)
        return tf.math.multiply_no_nan(tensor, tf.cast(factor, tensor.dtype))

    return on_values(multiply, value)


def _add(first: Any, second: Any) -> Any:
    """Add two scalars or gradients; the rows of sparse gradients are concatenated."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, tf.IndexedSlices) and isinstance(second, tf.IndexedSlices):
        values = tf.concat([first.values, second.values], 0)
        return tf.IndexedSlices(values, tf.concat([first.indices, second.indices], 0), first.dense_shape)
    return tf.convert_to_tensor(first) + tf.convert_to_tensor(second)


def _as_float(value: Any) -> tf.Tensor:
    """Convert a value to a floating-point tensor; integers become float64."""
    tensor = tf.convert_to_tensor(value)
    return tensor if tensor.dtype.is_floating else tf.cast(tensor, tf.float64)


class GradientNotes:
    """Records which variables have a gradient in any update of a step."""

    def __init__(self) -> None:
        self._has_gradient: dict[str, bool] = {}  # by the name of the variable

    def take(self, pairs: Pairs) -> None:
        """Record the (gradient, variable) pairs of an update; traced."""
        for gradient, variable in pairs:
            name = variable_name(variable)
            self._has_gradient[name] = self._has_gradient.get(name, False) or gradient is not None

    def lines(self, processors: Sequence[Any]) -> list[str]:
        """Return warnings about variables without a gradient and processor patterns without a match."""
        found = [name for name, has_gradient in self._has_gradient.items() if has_gradient]
        missing = [name for name, has_gradient in self._has_gradient.items() if not has_gradient]
        lines = [
            f"WARNING: {type(processor).__name__}: {pattern!r} matches no variable that has a gradient; it must match "
            f"whole names, such as {', '.join(sorted(found)[:3])}"
            for processor in (processors if found else ())
            for pattern in getattr(processor, "unmatched", ())
        ]
        if missing:
            lines.append(f"WARNING: the loss does not depend on {shorten_list(missing, 10)}: not trained")
        return lines


def _condition(when: tf.Tensor | bool | None, placement: Any) -> tuple[tf.Tensor | None, list[tf.Operation]]:
    """Return `when` as a tensor, and the ops that check that it is the same in all towers; traced."""
    if when is None:
        return None, []
    condition = tf.convert_to_tensor(when)
    if condition.dtype != tf.bool or condition.shape.rank != 0:
        found = f"{condition.dtype.name} of shape {condition.shape}"
        raise ModelError(f"apply_gradients: when must be a scalar bool, not {found}")
    if placement.towers == 1:
        return condition, []
    (agreement,) = placement.mean([tf.cast(condition, tf.float32)])
    message = "apply_gradients: `when` differs between the towers; average what it depends on over them first"
    return condition, [tf.debugging.Assert((agreement == 0.0) | (agreement == 1.0), [message])]


def apply_gradients(
    gradients_and_variables: Pairs,
    loss: tf.Tensor,
    optimizer: keras.optimizers.Optimizer,
    *,
    placement: Any,
    processors: Sequence[Callable[[Pairs], Pairs]],
    record_norm: bool,
    notes: GradientNotes,
    when: tf.Tensor | bool | None,
) -> None:
    """Update variables with the mean of all towers' gradients; see `TowerTrainer.apply_gradients`. Traced."""
    trace = tower_trace()
    if trace is not None and tf.compat.v1.get_default_graph() is not trace.graph:
        raise ModelError(
            "apply_gradients is called inside a tf.cond, a loop or a tf.function; call it outside, and give the "
            "condition as apply_gradients(..., when=condition)"
        )
    gradients_and_variables = list(gradients_and_variables)
    condition, checks = _condition(when, placement)
    pairs: Pairs = drop_missing(gradients_and_variables)
    notes.take(gradients_and_variables)
    if not pairs:
        raise ModelError("apply_gradients: the loss does not depend on any trainable variable")
    values = [*(gradient for gradient, _ in pairs), loss]
    if trace is not None and trace.weight is not None:
        fraction = _fraction(trace.weight, placement)
        values = [_weighted(value, fraction) for value in values]
    with tf.control_dependencies(checks):  # before the towers wait for each other's gradients
        *gradients, loss = placement.mean(values)
    # Sum duplicate rows, also those of different towers, before any nonlinear function of the gradient.
    dense = updates_all_rows(optimizer)
    pairs = [
        (summed(gradient, dense=dense), variable) for gradient, (_, variable) in zip(gradients, pairs, strict=True)
    ]
    if record_norm and trace is not None:
        name = unique_name("gradient_norm", trace.scalars, first=2)  # a step may update several times
        norm = global_norm(pairs)
        # NaN is left out of recorded means; with loss scaling, some steps have no finite gradients.
        trace.scalars[name] = tf.where(tf.math.is_finite(norm), norm, tf.cast(math.nan, norm.dtype))
    for process in processors:
        pairs = process(pairs)
        if pairs is None:
            raise ModelError(f"the gradient processor {process!r} returned None, not a list of (gradient, variable)")
    pairs = drop_missing(pairs)
    processed, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
    expect_averages(optimizer, placement.towers)
    if trace is None:  # no guard outside of a compiled step
        update_if(condition, optimizer, processed, variables)
    else:
        trace.guard.apply(trace, Update(optimizer, processed, variables, loss, condition))
