"""Show a model's variables and tensors, and the callbacks of its config."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from prototrain.callbacks import Callback, Priority
from prototrain.data.batches import by_path
from prototrain.launch import default_callbacks
from prototrain.model import ModelProtocol
from prototrain.model.built import BuiltModel
from prototrain.model.variables import variable_table
from prototrain.system.terminal import Table, plain_table, print_tables


def run(model: ModelProtocol, args: Namespace) -> None:
    """Print the model's variables, the inputs and tensors of one batch, and the callbacks of its config."""
    built = BuiltModel(model)
    net = built.build(built.data.first_batch, False)
    batch = [(name, *_describe(tensor)) for name, tensor in by_path(built.data.first_batch).items()]
    tensors = [(name, *_describe(tensor)) for name, tensor in by_path(net).items()]
    print_tables(variable_table(built.variables, built.trainable, built.decayed), end="\n\n")
    total, trained = (
        sum(variable.shape.num_elements() or 0 for variable in variables.values())
        for variables in (built.variables, built.trainable)
    )
    print_tables(plain_table({"parameters": f"{total:,}, {trained:,} of them trained"}), end="\n\n")
    print_tables(Table(batch, ["input", "dtype", "shape"]), end="\n\n")
    print_tables(Table(tensors, ["tensor", "dtype", "shape"]), end="\n\n")
    print_tables(callback_table(default_callbacks(model)))


def _describe(value: Any) -> tuple[str, str]:
    if not tf.is_tensor(value):
        return type(value).__name__, ""
    return value.dtype.name, str(value.shape.as_list()) if value.shape.rank is not None else "?"


def callback_table(callbacks: Sequence[Callback]) -> Table:
    """Return a table of callbacks with their intervals, in the order in which they run."""
    stages = {int(stage): stage.name.lower() for stage in Priority}
    rows = [
        (stages.get(callback.priority, str(callback.priority)), repr(callback))
        for callback in sorted(callbacks, key=lambda callback: callback.priority)
    ]
    return Table(rows, ["stage", "callback"])
