"""Checks of the tensors that a model's `build` returns, and its scalars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.data.batches import by_path
from prototrain.errors import ModelError, PrototrainError
from prototrain.system.tracebacks import user_line
from prototrain.tf_private import KerasVariable

LOSS_WEIGHT = "loss_weight"

ENGINE_SCALARS = ("gradient_norm", "learning_rate", "loss_l1", "loss_l2", "loss_layers", "loss_scale", "loss_total")
"""Names of the scalars that a step adds to those of the model."""


def check_net(net: Any) -> Mapping[str, Any]:
    """Raise a ModelError if a model's `build` returned anything but a mapping."""
    if not isinstance(net, Mapping):
        cure = "end it with `return net`" if net is None else 'write return {"loss": loss, ...}'
        raise ModelError(f"build() must return a mapping of named tensors, not {type(net).__name__}; {cure}")
    return net


def check_names(net: Mapping[str, Any]) -> None:
    """Raise a ModelError if a scalar of a model has a name from `ENGINE_SCALARS`."""
    taken = [name for name in scalars(net, require_loss=False) if name in ENGINE_SCALARS]
    if taken:
        raise ModelError(
            f"build() returns a scalar {taken[0]!r}, which is the name of a scalar of the step itself; give it another "
            f"name (taken: {', '.join(ENGINE_SCALARS)})"
        )


@contextmanager
def describing_batch(inputs: Mapping[str, Any]) -> Iterator[None]:
    """Context manager around `build` that adds the tensors of the batch to errors; a KeyError becomes a ModelError."""
    try:
        yield
    except PrototrainError:
        raise
    except KeyError as error:
        name = error.args[0] if error.args else error
        line = user_line(error)
        where = f"build() ({line})" if line else "build()"
        raise ModelError(f"KeyError in {where}: {name!r}; a batch has: {', '.join(by_path(inputs))}") from error
    except Exception as error:
        kinds = {path: getattr(value, "dtype", type(value).__name__) for path, value in by_path(inputs).items()}
        shapes = {path: getattr(value, "shape", "") for path, value in by_path(inputs).items()}
        of = ", ".join(f"{path} {getattr(kind, 'name', kind)}{shapes[path]}" for path, kind in kinds.items())
        error.add_note(f"in build() with a batch of: {of}")
        raise


def loss_weight(net: Mapping[str, Any]) -> tf.Tensor | None:
    """Return the weight of a model's loss, a float64 scalar, or None if the model returns no "loss_weight".

    A negative weight is NaN, so that the loss is NaN instead of a wrong mean.
    """
    given = net.get(LOSS_WEIGHT)
    if given is None:
        return None
    weight = tf.convert_to_tensor(given)
    if weight.shape.rank != 0 or not (weight.dtype.is_floating or weight.dtype.is_integer):
        raise ModelError(
            f"build() must return 'loss_weight' as a scalar number, such as tf.reduce_sum(mask); it is "
            f"{weight.dtype.name} of shape {weight.shape}"
        )
    weight = tf.stop_gradient(tf.cast(weight, tf.float64))
    return tf.where(weight >= 0.0, weight, tf.constant(float("nan"), tf.float64))


def scalars(net: Mapping[str, Any], *, require_loss: bool = True) -> dict[str, tf.Tensor]:
    """Return the numeric scalars among a model's tensors by name, without "loss_weight".

    Raises:
        ModelError: a required "loss" is missing or not a floating-point scalar.
    """
    # The dtype of a Keras variable, such as a metric's, is a string.
    kinds = (KerasVariable, float, np.floating)  # no int, which is rather a constant such as the number of classes
    read = {name: tf.convert_to_tensor(one) if isinstance(one, kinds) else one for name, one in net.items()}
    tensors = {name: one for name, one in read.items() if tf.is_tensor(one) and one.shape.rank == 0}
    numbers = {name: one for name, one in tensors.items() if one.dtype.is_floating or one.dtype.is_integer}
    found = {name: one for name, one in numbers.items() if name != LOSS_WEIGHT}
    if require_loss and not ("loss" in found and found["loss"].dtype.is_floating):
        loss: Any = net.get("loss")
        given = f"{loss.dtype.name} of shape {loss.shape}" if tf.is_tensor(loss) else type(loss).__name__
        wrong = f"it is {given}" if "loss" in net else f"it returned {', '.join(net) or 'nothing'}"
        raise ModelError(
            f"build() must return 'loss', a floating scalar tensor, for training; {wrong} "
            "(a trainer with its own train_step needs none: name it with --trainer)"
        )
    return found
