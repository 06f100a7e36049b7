"""A position that is come back to by reading the pass again."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from prototrain.data.digest import RollingDigest
from prototrain.data.position import Meta, Position, iterate
from prototrain.data.rule import is_python
from prototrain.data.source import Source

OTHER_BATCHES = (
    "the training data did not repeat: reading it again gave other batches (if its code draws random numbers, seed "
    "them where a pass begins, inside of the generator)"
)
SAME_BATCHES = (
    "the training data begins each pass with the same batch: shuffle it (Dataset.shuffle), or draw another order in "
    "each pass"
)


class ReplayedPosition(Position):
    """The pass is built again, and read from its start.

    A digest over the batches is kept with the place, and compared when they have been read again.

    Args:
        source: see `Position`.
        announce: see `Position`.
        caches: files that the first pass has still to make.
    """

    mode = "replay"

    def __init__(self, source: Source, announce: Callable[[str], None], caches: list[str]) -> None:
        super().__init__(source, announce)
        self._caches = caches
        self._digest = RollingDigest()
        self._expected: str | None = None  # at the present offset, while there are batches behind
        self._first: str | None = None  # batch of the last pass, as a digest
        self._has_told = False
        self._start(source.training, 0)

    def begin(self, number: int) -> None:
        if number == self.number + 1 and self.offset:
            first, self._first = self._first, self._digest.first()
            if first == self._first and not self._has_told and is_python(self._source.training):
                self._has_told = True
                self._announce(SAME_BATCHES)
        self._start(self._source.training_of(number), number)

    def _start(self, dataset: tf.data.Dataset, number: int) -> None:
        self.iterator = None  # the old one may hold the lock of a cache's file
        self.iterator = iterate(self._digest.over(dataset))
        self.number, self.offset, self.behind = number, 0, 0

    def rewind(self) -> None:
        number, offset, expected = self.number, self.offset, self._present()
        self.begin(number)
        self.offset = self.behind = offset
        self._expected = expected

    def write(self, prefix: str) -> Callable[[], Meta]:
        finish = super().write(prefix)
        digest = self._present()
        return lambda: {**finish(), "digest": digest}

    def _present(self) -> str | None:
        """The digest of the batches that were trained on."""
        if self.behind:
            return self._expected
        return self._digest.after(self.offset)

    def read(self, prefix: str, meta: Meta) -> str | None:
        number = meta["pass"]
        if number and self._caches:
            self.begin(number + 1)
            return f"the training data starts anew: it was cached in {self._caches[0]}, which is gone and made again"
        self.begin(number)
        self.offset = self.behind = meta["offset"]
        self._expected = meta.get("digest")
        return None

    def caught_up(self) -> str | None:
        expected, self._expected = self._expected, None
        return OTHER_BATCHES if expected is not None and expected != self._present() else None
