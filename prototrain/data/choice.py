"""Which class of position a training dataset gets: the best that is known to be right for its pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prototrain.data.cache_files import take_caches, unfinished
from prototrain.data.elements import first_batch
from prototrain.data.grain_data import GrainPosition, grain_of
from prototrain.data.indexed_position import IndexedPosition, indexed
from prototrain.data.iterator_state import NOT_SAVABLE
from prototrain.data.knowledge import Knowledge, knowledge_of
from prototrain.data.position import Position, RestartedPosition, iterate
from prototrain.data.randomness import shares_generators
from prototrain.data.replayed_position import ReplayedPosition
from prototrain.data.saved_position import SavedPosition
from prototrain.data.source import Source
from prototrain.data.waiting import patiently
from prototrain.system.tracebacks import cause
from prototrain.system.waiting import announcing

WAITING = "waiting for the first batch of the training data"


def choose_position(
    source: Source, announce: Callable[[str], None], *, is_single_pass: bool, made_up: dict[str, Any] | None = None
) -> tuple[Position, str, dict[str, Any]]:
    """Choose by what is known of the training dataset's stages; nothing is tried.

    Args:
        source: builds the datasets.
        announce: called with a line of text that the user should know.
        is_single_pass: whether the end of the data ends the training.
        made_up: in place of the first batch, which is not read then.

    Returns:
        the position, why it is not a saved one (or nothing), and the first batch.

    Raises:
        DataError: there is no first batch, or it cannot be read.
    """
    if (grain := grain_of(source.training)) is not None and not is_single_pass:
        of_grain = GrainPosition(source, announce, grain)
        return of_grain, "", _first_of(of_grain.look, announce, made_up)
    if indexed(source.training) is not None and not is_single_pass:
        own = source.training_of(0)  # which nobody else reads: each reading is another one
        if indexed(own) is not None and not shares_generators(source.training, own):
            by_index = IndexedPosition(source, announce, own)
            return by_index, "", _first_of(by_index.look, announce, made_up)
    known = knowledge_of(source.training)
    to_make = unfinished(known.caches)  # before anything is read
    take_caches(to_make, announce)
    reason = "each run reads it from its start to its end" if is_single_pass else known.not_saved
    if reason is None:
        try:
            position = SavedPosition(source, announce, known)
        except NOT_SAVABLE as error:
            reason = f"its iterator cannot be saved: {cause(error)}"
        else:
            return position, "", _first_of(position.look, announce, made_up)
    looked_at = source.training
    first = _look(looked_at, announce) if made_up is None else made_up
    source.build_anew()
    why_not = None if is_single_pass else _why_not_repeated(known, source, looked_at)
    if is_single_pass or why_not is not None:
        reason = why_not or reason
        return RestartedPosition(source, announce, reason), reason, first
    return ReplayedPosition(source, announce, known, to_make), reason, first


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


def _why_not_repeated(known: Knowledge, source: Source, looked_at: Any) -> str | None:
    if known.not_repeated is None and shares_generators(source.training, looked_at):
        return "datasets() gives shuffles that were made before it was called, which go on from where they were"
    return known.not_repeated
