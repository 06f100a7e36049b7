"""A position that TensorFlow saves: the iterator's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from prototrain.checkpoint import READ_ERRORS
from prototrain.data.iterator_state import mapped, read_state, restore_state, size_of_state, take_state, write_state
from prototrain.data.position import Meta, Position, iterate
from prototrain.data.source import Source
from prototrain.errors import CheckpointError
from prototrain.private_api.datasets import holds_generator
from prototrain.system.tracebacks import first_line

LARGE_STATE = 100 * 2**20  # bytes
FORGOTTEN = "TensorFlow had forgotten how the training data is shuffled in its next pass"


class _HeldState(NamedTuple):
    """A state that is known to be whole.

    Attributes:
        state: of the iterator.
        passed: how many batches of the pass had been read from it.
    """

    state: tf.Tensor
    passed: int


class SavedPosition(Position):
    """TensorFlow writes the iterator's state.

    Between two passes a state is not whole: TensorFlow has dropped the shuffle and not begun the next one, and would
    begin it in the order of the first pass. In place of such a state the last whole one is written, with more batches
    to be read behind it.

    Args:
        source: see `Position`.
        announce: see `Position`.
        reshuffles: whether each pass has another order, so that a whole state holds the generator of it.

    Raises:
        NOT_SAVABLE: TensorFlow cannot save the iterator.
    """

    mode = "iterator"
    endless = True
    names_files = True  # an interleave's state has that of each file it reads, a shuffle's those it still has to give

    def __init__(self, source: Source, announce: Callable[[str], None], *, reshuffles: bool) -> None:
        super().__init__(source, announce)
        self._reshuffles = reshuffles
        self._has_warned = False
        self._dataset = source.training
        self._start(0)

    def begin(self, number: int) -> None:
        self._dataset = self._source.training_of(number)
        self._start(number)

    def _start(self, number: int) -> None:
        self.iterator = iterate(self._dataset, endless=True)
        self.number, self.offset, self.behind = number, 0, 0
        self._held = _HeldState(take_state(self.iterator), 0)

    def rewind(self) -> None:
        # The old one first: it reads ahead, and iterators of one dataset share the generator of its shuffle.
        self.iterator = None
        held, self.iterator = self._held, iterate(self._dataset, endless=True)
        restore_state(self.iterator, held.state)
        self.behind = self.offset - held.passed

    def write(self, prefix: str) -> Callable[[], Meta]:
        number, offset = self.number, self.offset
        new = _HeldState(take_state(self.iterator), offset - self.behind)

        def finish() -> Meta:
            write_state(prefix, new.state)
            self._warn_if_large(prefix)
            held = new if self._is_whole(prefix) else self._held
            if held is not new:
                write_state(prefix, held.state)
            self._held = held
            return {"offset": offset, "behind": offset - held.passed, "pass": number}

        return finish

    def _is_whole(self, prefix: str) -> bool:
        if not self._reshuffles:
            return True
        with mapped(prefix) as content:
            return holds_generator(content)

    def read(self, prefix: str, meta: Meta) -> str | None:
        number, offset, behind = meta["pass"], meta["offset"], meta["behind"]
        # The iterators of one dataset share the generator of its shuffle, which the state resets.
        dataset = self._dataset if number == self.number else self._source.training_of(number)
        iterator = iterate(dataset, endless=True)
        try:
            state = read_state(prefix)
            restore_state(iterator, state)
        except READ_ERRORS as error:
            raise CheckpointError(f"the data position {prefix} cannot be restored: {first_line(error)}") from error
        self.iterator, self._dataset = iterator, dataset
        self.number, self.offset, self.behind = number, offset, behind
        self._held = _HeldState(state, offset - behind)
        return FORGOTTEN if meta.get("whole") is False else None  # as earlier versions wrote it

    def _warn_if_large(self, prefix: str) -> None:
        size = size_of_state(prefix)
        if size > LARGE_STATE and not self._has_warned:
            self._has_warned = True
            self._announce(
                f"WARNING: the data position takes {size / 2**20:.0f} MB in each checkpoint, the content of "
                "the dataset's buffers; shuffle before decoding or batching to make it small"
            )
