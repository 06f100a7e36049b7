"""Gradients on their way into the variables, from inside a tower: averaged, processed, guarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.optimizers import global_norm, update_with
from prototrain.step.plan import Towers
from prototrain.step.trace import tower_trace

Pairs = Sequence[tuple[Any, Any]]


def apply_gradients(
    gradients_and_variables: Pairs,
    loss: tf.Tensor,
    optimizer: keras.optimizers.Optimizer,
    *,
    placement: Towers,
    processors: Sequence[Callable[[Pairs], Pairs]],
    record_norm: bool,
) -> None:
    """Update variables with the mean of all towers' gradients; traced.

    Args:
        gradients_and_variables: pairs; a variable whose gradient is None is left out.
        loss: what the gradients are of, a scalar.
        optimizer: applies them.
        placement: the towers.
        processors: from and to such pairs, called in order.
        record_norm: whether the step gets the scalar "gradient_norm".

    Raises:
        ModelError: no variable has a gradient.
    """
    pairs: Pairs = [pair for pair in gradients_and_variables if pair[0] is not None]
    if not pairs:
        raise ModelError("the loss does not depend on any trainable variable")
    *gradients, loss = placement.mean([*(gradient for gradient, _ in pairs), loss])
    pairs = [(gradient, variable) for gradient, (_, variable) in zip(gradients, pairs, strict=True)]
    trace = tower_trace()
    if record_norm and trace is not None:
        trace.add_scalar("gradient_norm", global_norm(pairs))
    for process in processors:
        pairs = process(pairs)
    if placement.towers > 1:
        # Keras would add up the towers' gradients once more.
        optimizer._all_reduce_sum_gradients = _as_they_are
    processed, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
    if trace is None:  # outside of a compiled step there is nobody who could put anything back
        update_with(optimizer, processed, variables)
    else:
        trace.guard.apply(trace, optimizer, processed, variables, loss)


def _as_they_are(gradients_and_variables: Any) -> Any:
    return gradients_and_variables
