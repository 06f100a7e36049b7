"""A run that needs more memory than there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prototrain.errors import CheckpointError, OutOfMemoryError, PrototrainError
from prototrain.system.tracebacks import out_of_memory

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


@contextmanager
def saying_what_is_left(trainer: Trainer) -> Iterator[None]:
    """Turn an error that a lack of memory has led to into one line: what was asked for, and what the run goes on from.

    Raises:
        OutOfMemoryError: in place of such an error.
    """
    try:
        yield
    except OutOfMemoryError:
        raise
    except Exception as error:
        asked = out_of_memory(error)
        if asked is None:
            raise
        said = str(error) if isinstance(error, PrototrainError) else f"after step {trainer.global_step}: {asked}"
        cure = "" if trainer.config is None else "; a larger model.accumulate_steps needs less at a time"
        raise OutOfMemoryError(f"out of memory: {said}; {_left(trainer)}{cure}") from error


def _left(trainer: Trainer) -> str:
    try:
        steps = [] if trainer.experiment is None else trainer.session.checkpoints.steps()
    except CheckpointError as error:
        return str(error)
    if not steps:
        return "there is no checkpoint"
    return f"the newest checkpoint, of step {steps[-1]}, is whole, and the same run goes on from it"
