"""Checks of what a model's `build` returned, and its scalars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from prototrain.data.batches import by_path
from prototrain.errors import ModelError, PrototrainError
from prototrain.system.tracebacks import own_line
from prototrain.tf_private import KerasVariable

LOSS_WEIGHT = "loss_weight"

OF_ENGINE = (
    "gradient_norm",
    "learning_rate",
    "loss_l1",
    "loss_l2",
    "loss_layers",
    "loss_scale",
    "loss_total",
)
"""The names of the scalars that a step adds to those of the model."""


def check_net(net: Any) -> Mapping[str, Any]:
    """Check what a model's `build` returned.

    Raises:
        ModelError: it is not a mapping of names to tensors.
    """
    if not isinstance(net, Mapping):
        cure = "end it with `return net`" if net is None else 'write return {"loss": loss, ...}'
        raise ModelError(f"build() must return a mapping of named tensors, not {type(net).__name__}; {cure}")
    return net


def check_names(net: Mapping[str, Any]) -> None:
    """Check that no scalar of a model has the name of one of the step's own scalars.

    Raises:
        ModelError: one has.
    """
    taken = [name for name in scalars(net, require_loss=False) if name in OF_ENGINE]
    if taken:
        raise ModelError(
            f"build() returns a scalar {taken[0]!r}, which is the name of a scalar of the step itself; give it another "
            f"name (taken: {', '.join(OF_ENGINE)})"
        )


@contextmanager
def naming_batch(inputs: Mapping[str, Any]) -> Iterator[None]:
    """Around a call of `build`: a KeyError becomes an error that lists what the batch has."""
    try:
        yield
    except KeyError as error:
        if isinstance(error, PrototrainError):  # an unknown key of the config
            raise
        name = error.args[0] if error.args else error
        line = own_line(error)
        where = f"build() ({line})" if line else "build()"
        raise ModelError(f"KeyError in {where}: {name!r}; a batch has: {', '.join(by_path(inputs))}") from error


def loss_weight(net: Mapping[str, Any]) -> tf.Tensor | None:
    """What a model's loss is a mean over, such as the number of tokens: float64; None if the model does not say.

    Raises:
        ModelError: it is not a scalar.
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
    return tf.stop_gradient(tf.cast(weight, tf.float64))


def scalars(net: Mapping[str, Any], *, require_loss: bool = True) -> dict[str, tf.Tensor]:
    """The numeric scalars among a model's tensors, by name, without "loss_weight".

    Raises:
        ModelError: there is no floating "loss" among them.
    """
    # The dtype of a Keras variable, such as that of a metric, is a text.
    read = {name: tf.convert_to_tensor(one) if isinstance(one, KerasVariable) else one for name, one in net.items()}
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
