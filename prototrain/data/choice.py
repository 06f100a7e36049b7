"""The position that a training dataset gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prototrain.data.adapters import GrainPosition, grain_of
from prototrain.data.batches import first_batch
from prototrain.data.pipeline import stages
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
from prototrain.data.rule import data_position, is_file_cache, reshuffles, shares_generators
from prototrain.data.source import Source
from prototrain.errors import DataError
from prototrain.system.tracebacks import cause
from prototrain.system.waiting import announcing, interruptibly

WAITING = "waiting for the first batch of the training data"


def choose_position(
    source: Source,
    announce: Callable[[str], None],
    *,
    is_single_pass: bool,
    wanted: str = "auto",
    made_up: dict[str, Any] | None = None,
) -> tuple[Position, str, dict[str, Any]]:
    """Choose a position by the rule of `data_position`, and read the first batch, unless there is one `made_up`.

    Returns:
        the position, the reason if its mode is not "iterator" (otherwise ""), and the first batch.

    Raises:
        DataError: there is no first batch, it cannot be read, or TensorFlow cannot save the iterator that is wanted.
    """

    def first_of(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if made_up is not None:
            return made_up
        with announcing(WAITING, announce):
            return interruptibly(look)

    position: Position | None = None
    mode, reason = data_position(source.training, wanted)
    if is_single_pass:
        mode, reason = "restart", "each run reads it from its start to its end"
    elif wanted in ("auto", "iterator"):
        position = _numbered(source, announce)
    if position is None and mode == "iterator":
        try:
            if any(map(is_file_cache, stages(source.training))):
                raise DataError('trainer.data_position cannot be "iterator": the data is cached in a file')
            position = IteratorPosition(source, announce, reshuffles=reshuffles(source.training))
        except NOT_SAVABLE as error:
            if wanted == "iterator":
                raise DataError(
                    f"trainer.data_position: TensorFlow cannot save the iterator: {cause(error)}"
                ) from error
            mode, reason = "replay", f"TensorFlow cannot save its iterator: {cause(error)}"
    if position is not None:
        return position, "", first_of(position.look)
    looked_at = source.training
    first = first_of(lambda: first_batch(iterate(looked_at)))
    source.rebuild()
    if mode == "replay" and shares_generators(source.training, looked_at):
        mode, reason = "restart", "it has a shuffle that was made outside of datasets()"
    if mode == "restart":
        return RestartedPosition(source, announce, reason), reason, first
    return ReplayedPosition(source, announce), reason, first


def _numbered(source: Source, announce: Callable[[str], None]) -> Position | None:
    """A position that is a small value of the data's own, where it has one."""
    if (grain := grain_of(source.training)) is not None:
        return GrainPosition(source, announce, grain)
    if indexed(source.training) is None:
        return None
    dataset = source.training_of(0)  # not read elsewhere: each reading has another order
    if indexed(dataset) is None or shares_generators(source.training, dataset):
        return None
    return IndexedPosition(source, announce, dataset)
