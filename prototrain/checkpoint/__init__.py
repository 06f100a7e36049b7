"""A checkpoint: a directory that appears whole or not at all, is verified, and holds what a trainer has in `state`."""

from prototrain.checkpoint.checkpoints import Checkpoints
from prototrain.checkpoint.files import (
    BUNDLE,
    META,
    READ_ERRORS,
    Checkpoint,
    Saveable,
    Snapshot,
    first_line,
    holds_graph,
    read_bundle,
    verify,
)

__all__ = [
    "BUNDLE",
    "META",
    "READ_ERRORS",
    "Checkpoint",
    "Checkpoints",
    "Saveable",
    "Snapshot",
    "first_line",
    "holds_graph",
    "read_bundle",
    "verify",
]
