"""Show a model's variables and tensors, and the callbacks of its config."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import tensorflow as tf

from prototrain.callbacks.describe import callback_table
from prototrain.data.batches import by_path
from prototrain.launch import default_callbacks
from prototrain.model import ModelProtocol
from prototrain.model.built import BuiltModel
from prototrain.system.tables import Table, plain_table, show


def run(model: ModelProtocol, args: Namespace) -> None:
    """Print the model's variables, the shapes of what `build` returns for one batch, and the callbacks of its config.

    Args:
        model: the model; nothing is trained or written.
        args: not used.
    """
    built = BuiltModel(model)
    net = built.build(built.data.first_batch, False)
    batch = [(name, *_describe(tensor)) for name, tensor in by_path(built.data.first_batch).items()]
    tensors = [(name, *_describe(tensor)) for name, tensor in by_path(net).items()]
    show(built.table(), end="\n\n")
    show(plain_table(_totals(built)), end="\n\n")
    show(Table(batch, ["input", "dtype", "shape"]), end="\n\n")
    show(Table(tensors, ["tensor", "dtype", "shape"]), end="\n\n")
    show(callback_table(sorted(default_callbacks(model), key=lambda callback: callback.priority)))


def _totals(built: BuiltModel) -> dict[str, str]:
    """Numbers of parameters."""
    total, trained = (
        sum(variable.shape.num_elements() or 0 for variable in variables.values())
        for variables in (built.variables, built.trainable)
    )
    return {"parameters": f"{total:,}, {trained:,} of them trained"}


def _describe(value: Any) -> tuple[str, str]:
    if not tf.is_tensor(value):
        return type(value).__name__, ""
    return value.dtype.name, str(value.shape.as_list()) if value.shape.rank is not None else "?"
