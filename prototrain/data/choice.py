"""The position that a training dataset gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prototrain.data.adapters import GrainPosition, grain_of
from prototrain.data.batches import first_batch
from prototrain.data.cache_files import take_caches, unfinished
from prototrain.data.positions import (
    NOT_SAVABLE,
    IndexedPosition,
    IteratorPosition,
    Position,
    ReplayedPosition,
    RestartedPosition,
    indexed,
    iterate,
)
from prototrain.data.rule import UNKNOWN_FILE, data_position, file_caches, reshuffles, shares_generators
from prototrain.data.source import Source
from prototrain.data.waiting import patiently
from prototrain.errors import DataError
from prototrain.system.tracebacks import cause
from prototrain.system.waiting import announcing

WAITING = "waiting for the first batch of the training data"


def choose_position(
    source: Source,
    announce: Callable[[str], None],
    *,
    is_single_pass: bool,
    wanted: str = "auto",
    made_up: dict[str, Any] | None = None,
) -> tuple[Position, str, dict[str, Any]]:
    """Choose a position by the rule of `data_position`, and read the first batch.

    Args:
        source: builds the datasets.
        announce: called with a line of text that the user should know.
        is_single_pass: whether the end of the data ends the training.
        wanted: ``trainer.data_position``.
        made_up: stands for the first batch, which is not read then.

    Returns:
        the position, the reason if its mode is not "iterator" (otherwise ""), and the first batch.

    Raises:
        DataError: there is no first batch, it cannot be read, or TensorFlow cannot save the iterator that is wanted.
    """
    if wanted in ("auto", "iterator") and not is_single_pass:
        numbered = _numbered(source, announce)
        if numbered is not None:
            return numbered, "", _first_of(numbered.look, announce, made_up)
    caches = file_caches(source.training)
    to_make = unfinished([name for name in caches if name != UNKNOWN_FILE])  # before anything is read
    take_caches(to_make, announce)
    mode, reason = data_position(source.training, wanted)
    if is_single_pass:
        mode, reason = "restart", "each run reads it from its start to its end"
    if mode == "iterator":
        try:
            if caches:
                raise DataError(
                    f'trainer.data_position cannot be "iterator": the data is cached in the file {caches[0]}'
                )
            position = IteratorPosition(source, announce, reshuffles=reshuffles(source.training))
        except NOT_SAVABLE as error:
            if wanted == "iterator":
                raise DataError(
                    f"trainer.data_position: TensorFlow cannot save the iterator: {cause(error)}"
                ) from error
            mode, reason = "replay", f"TensorFlow cannot save its iterator: {cause(error)}"
        else:
            return position, "", _first_of(position.look, announce, made_up)
    looked_at = source.training
    first = _look(looked_at, announce) if made_up is None else made_up
    source.build_anew()
    if mode == "replay" and shares_generators(source.training, looked_at):
        mode, reason = "restart", "it has a shuffle that was made outside of datasets()"
    if mode == "restart":
        return RestartedPosition(source, announce, reason), reason, first
    return ReplayedPosition(source, announce, to_make), reason, first


def _numbered(source: Source, announce: Callable[[str], None]) -> Position | None:
    """A position that is a small value of the data's own, where it has one."""
    if (grain := grain_of(source.training)) is not None:
        return GrainPosition(source, announce, grain)
    if indexed(source.training) is None:
        return None
    own = source.training_of(0)  # not read elsewhere: each reading has another order
    if indexed(own) is None or shares_generators(source.training, own):
        return None
    return IndexedPosition(source, announce, own)


def _first_of(
    look: Callable[[], dict[str, Any]], announce: Callable[[str], None], made_up: dict[str, Any] | None
) -> dict[str, Any]:
    if made_up is not None:
        return made_up
    with announcing(WAITING, announce):
        return patiently(look)


def _look(dataset: Any, announce: Callable[[str], None]) -> dict[str, Any]:
    # In a function of its own: the iterator, which may hold the lock of a cache's file, ends with it.
    probe = iterate(dataset)
    return _first_of(lambda: first_batch(probe), announce, None)
