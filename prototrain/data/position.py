"""A position in the training data: how it moves, and how it is written to a checkpoint and found again.

There are three classes, and the stream of batches never asks which one it has:

- `SavedPosition` ("iterator"): TensorFlow saves the iterator. Exact.
- `ReplayedPosition` ("replay"): TensorFlow cannot save it (`from_generator`, `py_function`, stateful ops in `map`) or
  may not (`cache(filename)`, datasets as elements), but the dataset built again under the same seed gives the same
  batches. Each pass has its own seed, and a resume reads from the start of the pass up to its place. Exact.
- `RestartedPosition` ("restart"): built again, it gives other batches. A resume starts a new pass, which is not exact.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from prototrain.checkpoint import READ_ERRORS, first_line
from prototrain.data.digest import RollingDigest, digest_of
from prototrain.data.elements import first_batch
from prototrain.data.iterator_state import mapped, read_state, restore_state, take_state, write_state
from prototrain.data.knowledge import Knowledge, holds_generator
from prototrain.data.pipeline import prefetched
from prototrain.data.source import Source
from prototrain.errors import CheckpointError

PREFETCH = 2
LARGE_STATE = 100 * 2**20  # bytes
OTHER_BATCHES = (
    "the training data did not repeat: reading it again gave other batches (does its code draw random numbers?)"
)
FORGOTTEN = "TensorFlow had forgotten how the training data is shuffled in its next pass"

Meta = dict[str, Any]


class Position:
    """A place in the data; each class says how a run comes back to it.

    Args:
        source: builds the datasets.
        announce: called with a line of text that the user should know.

    Attributes:
        mode: the class's name, in checkpoints and in messages.
        endless: whether the iterator never ends; otherwise each pass has its own.
        keeps_place: whether a resume comes back to the place; otherwise it starts a new pass.
        iterator: what batches are read from; another object after a restore or a new pass.
        number: of the pass, from 0.
        offset: how many batches of the pass have been trained on.
        behind: how many of these have still to be read again from the iterator.
    """

    mode: ClassVar[str]
    endless: ClassVar[bool] = False
    keeps_place: ClassVar[bool] = True

    def __init__(self, source: Source, announce: Callable[[str], None]) -> None:
        self._source = source
        self._announce = announce
        self.iterator: Any = None
        self.number = self.offset = self.behind = 0

    def begin(self, number: int) -> None:
        """Go to the start of a pass."""
        self.iterator = None  # the old one may hold the lock of a cache's file
        self.iterator = iterate(self._source.training_of(number))
        self.number, self.offset, self.behind = number, 0, 0

    def rewind(self) -> None:
        """Go back to before the last batch that was trained on, after a step that read one and failed.

        What lies between is read only when the run goes on: reading it now could meet the very record that made the
        step fail.
        """
        raise NotImplementedError

    def write(self, prefix: str) -> Callable[[], Meta]:
        """Hold on to the place; returns a function, for any thread, that writes it and returns what `read` needs."""
        place = {"offset": self.offset, "behind": self.behind, "pass": self.number}
        return lambda: place

    def read(self, prefix: str, meta: Meta) -> str | None:
        """Go to a place that was written.

        Args:
            prefix: where its files start.
            meta: what the function that `write` returned has returned.

        Returns:
            why it is not the exact place, or None.

        Raises:
            CheckpointError: the files cannot be read; the present place stays.
        """
        raise NotImplementedError

    def caught_up(self) -> str | None:
        """Take note that no batches are left behind; returns why what was read is not what was trained on, or None."""
        return None


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
        known: of the training dataset.

    Raises:
        NOT_SAVABLE: against what is known, TensorFlow cannot save the iterator.
    """

    mode = "iterator"
    endless = True

    def __init__(self, source: Source, announce: Callable[[str], None], known: Knowledge) -> None:
        super().__init__(source, announce)
        self._reshuffles = known.reshuffles
        self._has_warned = False
        self._dataset = source.training
        self._start(0)

    def look(self) -> dict[str, Any]:
        """Read the first batch, and go back to before it.

        Raises:
            DataError: there is none, or it cannot be read.
        """
        first = first_batch(self.iterator)
        self.rewind()
        return first

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
        size = sum(path.stat().st_size for path in Path(prefix).parent.glob(Path(prefix).name + ".*"))
        if size > LARGE_STATE and not self._has_warned:
            self._has_warned = True
            self._announce(
                f"WARNING: the data position takes {size / 2**20:.0f} MB in each checkpoint, the content of "
                "the dataset's buffers; shuffle before decoding or batching to make it small"
            )


class ReplayedPosition(Position):
    """The pass is built again, and read from its start.

    Where Python code makes the data, a digest over the batches is kept with the place, and compared when they have been
    read again.

    Args:
        source: see `Position`.
        announce: see `Position`.
        known: of the training dataset.
        caches: files that the first pass has still to make.
        first: the first batch.
    """

    mode = "replay"

    def __init__(
        self, source: Source, announce: Callable[[str], None], known: Knowledge, caches: list[str], first: Any
    ) -> None:
        super().__init__(source, announce)
        self._caches = caches
        self._digest = RollingDigest() if known.is_python else None
        self._first = digest_of(first) if known.is_python else None
        self._expected: str | None = None  # at the present offset, while there are batches behind
        self._start(source.training, 0)

    def begin(self, number: int) -> None:
        self._start(self._source.training_of(number), number)

    def _start(self, dataset: tf.data.Dataset, number: int) -> None:
        self.iterator = None  # the old one may hold the lock of a cache's file
        self.iterator = iterate(dataset if self._digest is None else self._digest.over(dataset))
        self.number, self.offset, self.behind = number, 0, 0

    def rewind(self) -> None:
        number, offset, expected = self.number, self.offset, self._present()
        self.begin(number)
        self.offset = self.behind = offset
        self._expected = expected

    def write(self, prefix: str) -> Callable[[], Meta]:
        finish = super().write(prefix)
        digests = {} if self._digest is None else {"digest": self._present(), "first batch": self._first}
        return lambda: {**finish(), **digests}

    def _present(self) -> str | None:
        """The digest of the batches that were trained on."""
        if self._digest is None or self.behind:
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
        return OTHER_BATCHES if meta.get("first batch", self._first) != self._first else None

    def caught_up(self) -> str | None:
        expected, self._expected = self._expected, None
        return OTHER_BATCHES if expected is not None and expected != self._present() else None


class RestartedPosition(Position):
    """Each run starts a new pass.

    Args:
        source: see `Position`.
        announce: see `Position`.
        reason: why there is nothing better.
    """

    mode = "restart"
    keeps_place = False

    def __init__(self, source: Source, announce: Callable[[str], None], reason: str) -> None:
        super().__init__(source, announce)
        self._reason = reason
        self.iterator = iterate(source.training)

    def rewind(self) -> None:
        pass  # the batch of the failed step is lost, as is the rest of the pass with a resume

    def read(self, prefix: str, meta: Meta) -> str | None:
        self.begin(meta["pass"] + 1)
        return f"the training data starts anew: {self._reason}"


def iterate(dataset: tf.data.Dataset, *, endless: bool = False) -> Any:
    """Begin reading a dataset, some batches ahead.

    Args:
        dataset: gives batches.
        endless: begin it anew at its end.
    """
    if endless and int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
        dataset = dataset.repeat()
    return iter(prefetched(dataset, PREFETCH))
