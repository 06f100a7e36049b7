"""Which class of position a training dataset gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prototrain.data.elements import first_batch, same_batch
from prototrain.data.iterator_state import NOT_SAVABLE, bytes_of, take_state
from prototrain.data.knowledge import generators, knowledge_of, why_not_saved
from prototrain.data.position import Position, ReplayedPosition, RestartedPosition, SavedPosition, iterate
from prototrain.data.source import Source


def choose_position(
    source: Source, announce: Callable[[str], None], *, is_single_pass: bool
) -> tuple[Position, str, dict[str, Any]]:
    """Try to save an iterator that has begun, and find out what else may serve.

    Args:
        source: builds the datasets.
        announce: called with a line of text that the user should know.
        is_single_pass: whether the end of the data ends the training.

    Returns:
        the position, why it is not a saved one (or nothing), and the first batch.
    """
    training = source.training
    if is_single_pass:
        reason = "each run reads it from its start to its end"
        first = first_batch(iterate(training))
        return RestartedPosition(source, announce, reason), reason, first
    known = knowledge_of(training)
    to_make = [name for name in known.caches if not Path(f"{name}.index").exists()]  # before anything is read
    probe = iterate(training, endless=True)
    try:
        start = take_state(probe)
    except NOT_SAVABLE:
        start = None
    first = first_batch(probe)
    why_not = why_not_saved(probe, known.caches)
    if why_not is None and start is not None:
        begins_late = known.shuffles > len(generators(bytes_of(start)))
        return SavedPosition(source, announce, known, None if begins_late else start), "", first
    del probe  # it may hold the lock of a cache's file
    reason = why_not or "its iterator cannot be saved at its start"
    if same_batch(first, first_batch(iter(source.build(0)["trn"]))):
        return ReplayedPosition(source, announce, to_make), reason, first
    reason += "; and built again under the same seed it gives other batches"
    return RestartedPosition(source, announce, reason), reason, first
