"""What a model's `build` returned: checked, and its scalars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.private_api.of_keras import KerasVariable


def check_net(net: Any) -> Mapping[str, Any]:
    """Check what a model's `build` returned.

    Raises:
        ModelError: it is not a mapping of names to tensors.
    """
    if not isinstance(net, Mapping):
        raise ModelError(f"build() must return a mapping of named tensors, not {type(net).__name__}")
    return net


def scalars(net: Mapping[str, Any], *, require_loss: bool = True) -> dict[str, tf.Tensor]:
    """The numeric scalars among a model's tensors, by name.

    Raises:
        ModelError: there is no floating "loss" among them.
    """
    # Such as that of a metric, whose dtype is a text.
    read = {name: tf.convert_to_tensor(value) for name, value in net.items() if isinstance(value, KerasVariable)}
    found = {
        name: value
        for name, value in {**net, **read}.items()
        if tf.is_tensor(value) and value.shape.rank == 0 and (value.dtype.is_floating or value.dtype.is_integer)
    }
    if require_loss and not ("loss" in found and found["loss"].dtype.is_floating):
        loss: Any = net.get("loss")
        given = f"{loss.dtype.name} of shape {loss.shape}" if tf.is_tensor(loss) else type(loss).__name__
        wrong = f"it is {given}" if "loss" in net else f"it returned {', '.join(net) or 'nothing'}"
        raise ModelError(
            f"build() must return 'loss', a floating scalar tensor, for training; {wrong} "
            "(a trainer with a train_step of its own needs none: name it with --trainer)"
        )
    return found
