"""Checkpoints of `trainer.state`: directories that are written atomically and verified when they are read."""

from prototrain.checkpoint.store import (
    BUNDLE,
    META,
    READ_ERRORS,
    Checkpoint,
    Checkpoints,
    Saveable,
    Snapshot,
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
    "read_bundle",
    "verify",
]
