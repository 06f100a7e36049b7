"""A checkpoint: a directory that appears whole or not at all, is verified, and holds what a trainer has in `state`."""

from prototrain.checkpoint.bundle import BUNDLE, READ_ERRORS, read_bundle
from prototrain.checkpoint.checkpoints import Checkpoints
from prototrain.checkpoint.files import (
    META,
    Checkpoint,
    Saveable,
    Snapshot,
    holds_graph,
    verify,
)
from prototrain.system.tracebacks import first_line

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
