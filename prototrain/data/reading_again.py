"""Reading batches again, from where a position could be saved up to the place of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from prototrain.data.positions import Position
from prototrain.errors import DataError
from prototrain.system.tracebacks import cause
from prototrain.system.waiting import PATIENCE_SECONDS

LONGEST_DEAFNESS = 0.2  # seconds, while batches are read again


def read_again(
    position: Position,
    stop_requested: Callable[[], bool],
    take_caveat: Callable[[str | None], object],
    *,
    announce: Callable[[str], None],
    clock: Callable[[], float],
) -> bool:
    """Read on to right behind the last batch that was trained on.

    Args:
        position: which has batches behind it.
        stop_requested: asked now and then whether to leave off.
        take_caveat: called with why that place is not the exact one, or None.
        announce: called with a line of text that the user should know.
        clock: returns the time in seconds.

    Returns:
        whether that place was reached.

    Raises:
        DataError: the data cannot be read; the position is as it was saved.
    """
    begin, behind, batches, is_quiet = clock(), position.behind, 1, True
    while position.behind and not stop_requested():
        before, batches = clock(), min(position.behind, batches)
        try:
            _advance(position.iterator, tf.constant(batches))
        except tf.errors.OutOfRangeError:
            take_caveat("the training data did not repeat: reading it again gave fewer batches")
            position.begin(position.number + 1)
            return False
        except tf.errors.OpError as error:
            position.rewind()  # nobody knows how many of them were read
            raise DataError(f"reading the training data again failed: {cause(error)}") from error
        position.behind -= batches
        now = clock()
        batches = batches * 2 if now - before < LONGEST_DEAFNESS / 2 else max(batches // 2, 1)
        if is_quiet and now - begin > PATIENCE_SECONDS:
            is_quiet = False
            announce(f"reading {behind} batches again to get to the place of the run")
    read, seconds = behind - position.behind, clock() - begin
    announce(f"read {read} batches again to get to the place of the run ({seconds:.1f} s)")
    if not position.behind:
        take_caveat(position.caught_up())
    return not position.behind


def _read_on(iterator: Any, batches: tf.Tensor) -> None:
    for _ in tf.range(batches):
        next(iterator)


_advance = tf.function(_read_on, reduce_retracing=True)
