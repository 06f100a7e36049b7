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
from prototrain.data.iterator_state import bytes_of, mapped, read_state, restore_state, take_state, write_state
from prototrain.data.knowledge import Knowledge, generators
from prototrain.data.pipeline import prefetched
from prototrain.data.source import Source
from prototrain.errors import CheckpointError

PREFETCH = 2
LARGE_STATE = 100 * 2**20  # bytes
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
        self.iterator = iterate(self._source.build(number)["trn"])
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


class _HeldState(NamedTuple):
    """A state that is known to be whole.

    Attributes:
        state: of the iterator.
        passed: how many batches of the pass had been read from it.
        is_whole: False of one of an earlier version that was not.
    """

    state: tf.Tensor
    passed: int
    is_whole: bool = True


class SavedPosition(Position):
    """TensorFlow writes the iterator's state.

    Between two passes some states are not whole: TensorFlow has dropped a shuffle and not begun the next one, and would
    begin it in the order of the first pass. In place of such a state the last whole one is written, with more batches
    to be read behind it.

    Args:
        source: see `Position`.
        announce: see `Position`.
        knowledge: what is known of the training dataset.
        start: the state in which its iterator began, where another one has read from it since.
    """

    mode = "iterator"
    endless = True

    def __init__(
        self, source: Source, announce: Callable[[str], None], knowledge: Knowledge, start: tf.Tensor | None
    ) -> None:
        super().__init__(source, announce)
        self._knowledge = knowledge
        self._generators: set[bytes] = set()  # those that a state must hold
        self._begins_late = start is None
        self._dataset = source.training if start is not None else source.build(0)["trn"]
        self._start(0, start)

    def begin(self, number: int) -> None:
        self._dataset = self._source.build(number)["trn"]
        self._start(number)

    def _start(self, number: int, start: tf.Tensor | None = None) -> None:
        self.iterator = iterate(self._dataset, endless=True)
        if start is not None:
            restore_state(self.iterator, start)
        self.number, self.offset, self.behind = number, 0, 0
        state = take_state(self.iterator)
        self._held = _HeldState(state, 0)
        self._generators = generators(bytes_of(state))

    def rewind(self) -> None:
        # The old one first: it reads ahead, and iterators of one dataset share the seeds of its shuffles.
        self.iterator = None
        self._dataset = self._fresh(self.number)
        self.iterator = iterate(self._dataset, endless=True)
        restore_state(self.iterator, self._held.state)
        self.behind = self.offset - self._held.passed

    def write(self, prefix: str) -> Callable[[], Meta]:
        number, offset, held = self.number, self.offset, self._held
        new = _HeldState(take_state(self.iterator), offset - self.behind)

        def finish() -> Meta:
            write_state(prefix, new.state)
            self._warn_if_large(prefix)
            found = generators(mapped(prefix))
            self._generators |= found
            is_whole = found == self._generators
            written = new._replace(is_whole=is_whole) if is_whole or not self._knowledge.rereads else held
            if written is held:
                write_state(prefix, held.state)
            self._held = written
            return {
                "offset": offset,
                "behind": offset - written.passed,
                "whole": written.is_whole,
                "pass": number,
            }

        return finish

    def read(self, prefix: str, meta: Meta) -> str | None:
        number, offset, behind = meta["pass"], meta["offset"], meta["behind"]
        dataset = self._fresh(number)
        iterator = iterate(dataset, endless=True)
        try:
            state = read_state(prefix)
            restore_state(iterator, state)
        except READ_ERRORS as error:
            raise CheckpointError(f"the data position {prefix} cannot be restored: {first_line(error)}") from error
        self.iterator, self._dataset = iterator, dataset
        self.number, self.offset, self.behind = number, offset, behind
        is_whole = meta.get("whole") is not False
        self._held = _HeldState(state, offset - behind, is_whole)
        self._generators |= generators(mapped(prefix))
        return None if is_whole else FORGOTTEN

    def _fresh(self, number: int) -> tf.data.Dataset:
        """The dataset of a pass, for another iterator of it.

        The iterators of one dataset share the random generators of its shuffles. A restored state resets those of the
        shuffles that it holds; one that had not begun by then would go on from where another iterator has left it.
        """
        reusable = number == self.number and not self._begins_late
        return self._dataset if reusable else self._source.build(number)["trn"]

    def _warn_if_large(self, prefix: str) -> None:
        size = sum(path.stat().st_size for path in Path(prefix).parent.glob(Path(prefix).name + ".*"))
        if size > LARGE_STATE:
            self._announce(
                f"WARNING: the data position takes {size / 2**20:.0f} MB in each checkpoint, the content of "
                "the dataset's buffers; shuffle before decoding or batching to make it small"
            )


class ReplayedPosition(Position):
    """The pass is built again, and read from its start.

    Args:
        source: see `Position`.
        announce: see `Position`.
        caches: files that the first pass has still to make.
    """

    mode = "replay"

    def __init__(self, source: Source, announce: Callable[[str], None], caches: list[str]) -> None:
        super().__init__(source, announce)
        self._caches = caches
        self.begin(0)

    def rewind(self) -> None:
        number, offset = self.number, self.offset
        self.begin(number)
        self.offset = self.behind = offset

    def read(self, prefix: str, meta: Meta) -> str | None:
        number = meta["pass"]
        if number and self._caches:
            self.begin(number + 1)
            return f"the training data starts anew: it was cached in {self._caches[0]}, which is gone and made again"
        self.begin(number)
        self.offset = self.behind = meta["offset"]
        return None


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
        self.begin(0)

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
