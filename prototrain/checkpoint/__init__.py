"""Checkpoints: directories that appear whole or not at all, are verified, and hold what a trainer has in `state`."""

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
