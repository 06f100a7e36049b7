"""Reading batches again, from where a position could be saved up to the place of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from prototrain.data.positions import FEWER_BATCHES, Position
from prototrain.errors import DataError
from prototrain.system.tracebacks import cause
from prototrain.system.waiting import PATIENCE_SECONDS

LONGEST_CALL = 0.2  # seconds without a look at whether a stop is requested


class Reader:
    """Reads the batches behind a position again, and drops them, until `stop_requested` returns True."""

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
        self._in_a_call = 1
        self._read = 0
        self._is_quiet = True
        self.is_stopped = False

    def read(self) -> str | None:
        """Read on to right behind the last batch that was trained on.

        If the pass gives other batches than before, the passes before it are read again, too, where that can help.

        Returns:
            why the place that was reached is not the exact one, or None.

        Raises:
            DataError: the data cannot be read; the position is as it was saved.
        """
        caveat = self._read_behind()
        if caveat and self._position.begin_again(self._read_to_end):
            caveat = self._read_behind()
        seconds = self._clock() - self._begin
        self._announce(f"read {self._read} batches again to get to the place of the run ({seconds:.1f} s)")
        return caveat

    def _read_behind(self) -> str | None:
        position = self._position
        each = position.block or 1
        try:
            while position.behind >= each and self._may_read():
                position.behind -= each * self._read_some(position.behind // each)
            if position.behind % each and position.behind < each and self._may_read():
                position.read_block()
                self._read += position.behind
                position.row, position.behind = position.behind, 0
        except tf.errors.OutOfRangeError:
            return FEWER_BATCHES
        return None if position.behind else position.caught_up()

    def _read_to_end(self) -> bool:
        """Read a pass to its end; returns False if it is left before that."""
        try:
            while self._may_read():
                self._read_some(self._in_a_call)
        except tf.errors.OutOfRangeError:
            return True
        return False

    def _may_read(self) -> bool:
        self.is_stopped = self.is_stopped or self._stop_requested()
        return not self.is_stopped

    def _read_some(self, most: int) -> int:
        """Read up to so many elements of the iterator in a call that lasts about `LONGEST_CALL`; returns how many."""
        before, number = self._clock(), min(most, self._in_a_call)
        try:
            _advance(self._position.iterator, tf.constant(number))
        except tf.errors.OutOfRangeError:
            raise
        except tf.errors.OpError as error:
            self._position.rewind()  # how many of them were read is not known
            raise DataError(f"reading the training data again failed: {cause(error)}") from error
        now = self._clock()
        self._read += number * (self._position.block or 1)
        self._in_a_call = number * 2 if now - before < LONGEST_CALL / 2 else max(number // 2, 1)
        if self._is_quiet and now - self._begin > PATIENCE_SECONDS:
            self._is_quiet = False
            self._announce("reading batches again to get to the place of the run")
        return number


def _read_on(iterator: Any, elements: tf.Tensor) -> None:
    for _ in tf.range(elements):
        next(iterator)


_advance = tf.function(_read_on, reduce_retracing=True)
