"""Reading batches again, from where a position could be saved up to the place of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from prototrain.data.positions import FEWER_BATCHES, Position
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

    If the pass gives other batches than before, the passes before it are read again, too, where that can help.

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
    reader = _Reader(position, stop_requested, announce, clock)
    caveat = reader.read_behind()
    if caveat and position.read_passes_before(reader.read_to_end):
        caveat = reader.read_behind()
    announce(f"read {reader.read} batches again to get to the place of the run ({reader.seconds:.1f} s)")
    if reader.is_stopped:
        return False
    take_caveat(caveat)
    if caveat == FEWER_BATCHES:
        position.begin(position.number + 1)
    return not position.behind and caveat != FEWER_BATCHES


class _Reader:
    """Reads batches and drops them, in calls that last about `LONGEST_DEAFNESS`."""

    def __init__(
        self,
        position: Position,
        stop_requested: Callable[[], bool],
        announce: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._position = position
        self._stop_requested = stop_requested
        self._announce = announce
        self._clock = clock
        self._begin = clock()
        self._batches = 1
        self._is_quiet = True
        self.read = 0
        self.is_stopped = False

    @property
    def seconds(self) -> float:
        """Since the first batch."""
        return self._clock() - self._begin

    def read_behind(self) -> str | None:
        """Read all that is behind; returns why it is not what was trained on, or None."""
        position = self._position
        each = position.block or 1
        try:
            while position.behind >= each and self._may_read():
                position.behind -= each * self._read(position.behind // each)
            if position.behind % each and position.behind < each and self._may_read():
                position.read_block()
                position.row, position.behind = position.behind, 0
        except tf.errors.OutOfRangeError:
            return FEWER_BATCHES
        return None if position.behind else position.caught_up()

    def read_to_end(self) -> bool:
        """Read the pass to its end; returns False if it is left before that."""
        try:
            while self._may_read():
                self._read()
        except tf.errors.OutOfRangeError:
            return True
        return False

    def _may_read(self) -> bool:
        self.is_stopped = self.is_stopped or self._stop_requested()
        return not self.is_stopped

    def _read(self, most: int | None = None) -> int:
        before, batches = self._clock(), self._batches if most is None else min(most, self._batches)
        try:
            _advance(self._position.iterator, tf.constant(batches))
        except tf.errors.OutOfRangeError:
            raise
        except tf.errors.OpError as error:
            self._position.rewind()  # how many of them were read is not known
            raise DataError(f"reading the training data again failed: {cause(error)}") from error
        now = self._clock()
        self.read += batches
        self._batches = batches * 2 if now - before < LONGEST_DEAFNESS / 2 else max(batches // 2, 1)
        if self._is_quiet and now - self._begin > PATIENCE_SECONDS:
            self._is_quiet = False
            self._announce("reading batches again to get to the place of the run")
        return batches


def _read_on(iterator: Any, batches: tf.Tensor) -> None:
    for _ in tf.range(batches):
        next(iterator)


_advance = tf.function(_read_on, reduce_retracing=True)
