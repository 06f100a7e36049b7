"""Gradients on their way into the variables, from inside a tower: averaged, processed, guarded."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.gradient_processors import drop_missing, global_norm, summed, variable_name
from prototrain.optimizers import update_if
from prototrain.private_api.of_keras import expect_averages
from prototrain.step.nonfinite import Update
from prototrain.step.trace import tower_trace

Pairs = Sequence[tuple[Any, Any]]


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
    pairs = [(summed(gradient), variable) for gradient, (_, variable) in zip(gradients, pairs, strict=True)]
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
