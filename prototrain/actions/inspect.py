"""What a model is made of: its variables, its tensors, and who runs when while it is trained."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import tensorflow as tf
from tabulate import tabulate

from prototrain.callbacks.group import CallbackGroup
from prototrain.launch import default_callbacks
from prototrain.model import ModelProtocol
from prototrain.trainers.tower import SimpleTrainer


def run(model: ModelProtocol, args: Namespace) -> None:
    """Print the model's variables, the shapes of what `build` returns for one batch, and the callbacks of its config.

    Args:
        model: the model; nothing of it is trained or written.
        args: not used.
    """
    trainer = SimpleTrainer(model)
    net = trainer.build(trainer.data.first_batch, False)
    batch = [(name, *_describe(tensor)) for name, tensor in trainer.data.first_batch.items()]
    tensors = [(name, *_describe(tensor)) for name, tensor in net.items()]
    print(*trainer.describe_more(), sep="\n\n", end="\n\n")
    print(tabulate(batch, headers=["input", "dtype", "shape"]), end="\n\n")
    print(tabulate(tensors, headers=["tensor", "dtype", "shape"]), end="\n\n")
    print(CallbackGroup(trainer, default_callbacks(model)).describe())


def _describe(value: Any) -> tuple[str, str]:
    if not tf.is_tensor(value):
        return type(value).__name__, ""
    return value.dtype.name, str(value.shape.as_list()) if value.shape.rank is not None else "?"
