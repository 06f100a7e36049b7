"""Positions in the training data: how each moves, and how it is written to a checkpoint and restored.

`IteratorPosition`, `IndexedPosition` and `GrainPosition` (in `adapters`) have the mode "iterator", `ReplayedPosition`
has "replay" and `RestartedPosition` "restart".
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from prototrain.checkpoint import READ_ERRORS
from prototrain.data.batches import RollingDigest, first_batch
from prototrain.data.reading_ahead import PREFETCH, in_blocks, prefetched
from prototrain.data.rule import is_function_of_element, is_python
from prototrain.data.source import Source
from prototrain.data.stages import name_of, sources
from prototrain.errors import CheckpointError
from prototrain.readers.order import Order, order_of
from prototrain.system.files import literal_prefix
from prototrain.system.tracebacks import first_line
from prototrain.tf_private import holds_generator, iterator_state, set_iterator_state, stage_number

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
        names_files: whether what is written may have the names of the data's files, and read them by these.
        iterator: what batches are read from; another object after a restore or a new pass.
        number: of the pass, from 0.
        offset: how many batches of the pass have been trained on.
        behind: how many of these have still to be read again from the iterator.
        block: how many batches the iterator gives at a time, stacked; 0 if it gives single ones.
        current: the block that is being trained on, if there is one.
        row: of the next batch in it.
    """

    mode: ClassVar[str]
    endless: ClassVar[bool] = False
    keeps_place: ClassVar[bool] = True
    names_files: ClassVar[bool] = False

    def __init__(self, source: Source, announce: Callable[[str], None]) -> None:
        self._source = source
        self._announce = announce
        self.iterator: Any = None
        self.number = self.offset = self.behind = self.block = self.row = 0
        self.current: Any = None

    def look(self) -> dict[str, Any]:
        """Read the first batch, and go back to before it.

        Raises:
            DataError: there is none, or it cannot be read.
        """
        first = first_batch(self.iterator)
        self.rewind()
        return first

    def begin(self, number: int) -> None:
        """Go to the start of a pass."""
        self.iterator = None  # the old one may hold the lock of a cache's file
        self.iterator = self._iterate(self._source.training_of(number))
        self.number, self.offset, self.behind = number, 0, 0

    def use_blocks(self, block: int) -> None:
        """Have the iterator give so many batches at a time, before the first one is trained on."""
        self.block = block
        self.begin(self.number)

    @property
    def rows(self) -> int:
        """How many batches of the present block have still to be trained on."""
        return 0 if self.current is None else int(tf.nest.flatten(self.current)[0].shape[0]) - self.row

    def read_block(self) -> None:
        """Read the next block.

        Raises:
            tf.errors.OutOfRangeError: the pass has ended.
        """
        self.current = None  # also if nothing can be read
        self.current, self.row = self.iterator.get_next(), 0

    def _iterate(self, dataset: tf.data.Dataset, *, endless: bool = False) -> Any:
        """Begin reading a dataset; the present block is forgotten."""
        self.current = None
        return iterate(dataset, endless=endless, block=self.block)

    def rewind(self) -> None:
        """Go back to before the last batch that was trained on, after a step that read one and failed.

        The batches in between are read only when the run continues: reading them now could meet the record that made
        the step fail.
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
        """Say why the batches that were read again are not those that were trained on; None if they are."""
        return None

    def read_passes_before(self, read_to_end: Callable[[], bool]) -> bool:
        """Read earlier passes again, where they change what the present one gives; returns whether it did."""
        return False


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
        self.iterator = self._iterate(source.training)

    def rewind(self) -> None:
        pass  # the batch of the failed step is lost, as is the rest of the pass with a resume

    def read(self, prefix: str, meta: Meta) -> str | None:
        self.begin(meta["pass"] + 1)
        return f"the training data starts anew: {self._reason}"


def iterate(dataset: tf.data.Dataset, *, endless: bool = False, block: int = 0) -> Any:
    """Begin reading a dataset, some batches ahead.

    Args:
        dataset: gives batches.
        endless: begin it anew at its end.
        block: how many batches to stack; 0 for single ones.
    """
    if endless and int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
        dataset = dataset.repeat()
    return iter(in_blocks(dataset, block) if block else prefetched(dataset, PREFETCH))


NOT_SAVABLE = (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)
_DATA = "data-00000-of-00001"
_KEY = "iterator/.ATTRIBUTES/ITERATOR_STATE"  # as tf.train.Checkpoint(iterator=...) names it


def take_state(iterator: Any) -> tf.Tensor:
    """An iterator's state, which does not move on with it; a vector of variants.

    Raises:
        NOT_SAVABLE: it cannot be saved.
    """
    return iterator_state(iterator)


def restore_state(iterator: Any, state: tf.Tensor) -> None:
    """Bring an iterator of the same dataset to a state.

    Raises:
        tf.errors.OpError: it is not of such an iterator.
    """
    set_iterator_state(iterator, state)


def write_state(prefix: str, state: tf.Tensor) -> None:
    """Write a state to files, from any thread."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], tensors=[state])


def read_state(prefix: str) -> tf.Tensor:
    """Read a state that was written.

    Raises:
        tf.errors.OpError: there is none.
    """
    with literal_prefix(prefix) as path, tf.device("CPU:0"):
        (state,) = tf.raw_ops.RestoreV2(prefix=path, tensor_names=[_KEY], shape_and_slices=[""], dtypes=[tf.variant])
    return state


def mapped(prefix: str) -> mmap:
    """The bytes of a written state."""
    with open(f"{prefix}.{_DATA}", "rb") as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ)


def size_of_state(prefix: str) -> int:
    """The size of a written state in bytes."""
    return os.path.getsize(f"{prefix}.{_DATA}")


LARGE_STATE = 100 * 2**20  # bytes
SECONDS_BETWEEN_STATES = 5.0  # that are taken between blocks: so much at most is read again


class _HeldState(NamedTuple):
    """A state that is known to be whole.

    Attributes:
        state: of the iterator.
        passed: how many batches of the pass had been read from it.
    """

    state: tf.Tensor
    passed: int


class IteratorPosition(Position):
    """TensorFlow writes the iterator's state.

    Between two passes a state is not whole: TensorFlow has dropped the shuffle and not begun the next one, and would
    begin it in the order of the first pass. The last whole state is written instead, with more batches
    to be read behind it; so it is within a block of batches.

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
        self.iterator = self._iterate(self._dataset, endless=True)
        self.number, self.offset, self.behind = number, 0, 0
        self._held = self._between = _HeldState(take_state(self.iterator), 0)
        self._taken_at = time.monotonic()

    def read_block(self) -> None:
        if self._between is self._held or time.monotonic() - self._taken_at > SECONDS_BETWEEN_STATES:
            self._between = _HeldState(take_state(self.iterator), self.offset - self.behind)
            self._taken_at = time.monotonic()
        super().read_block()

    def rewind(self) -> None:
        # The old one first: it reads ahead, and iterators of one dataset share the generator of its shuffle.
        self.iterator = None
        held, self.iterator = self._held, self._iterate(self._dataset, endless=True)
        restore_state(self.iterator, held.state)
        self._between = held
        self.behind = self.offset - held.passed

    def write(self, prefix: str) -> Callable[[], Meta]:
        number, offset = self.number, self.offset
        # Within a block the iterator is ahead of the run: the state from between two blocks is written.
        new = self._between if self.rows else _HeldState(take_state(self.iterator), offset - self.behind)

        def finish() -> Meta:
            write_state(prefix, new.state)
            self._warn_if_large(prefix)
            held = new if self._is_whole(prefix) else self._held
            if held is not new:
                write_state(prefix, held.state)
            self._held = held
            return {"offset": offset, "behind": offset - held.passed, "pass": number, "block": self.block}

        return finish

    def _is_whole(self, prefix: str) -> bool:
        if not self._reshuffles:
            return True
        with mapped(prefix) as content:
            return holds_generator(content)

    def read(self, prefix: str, meta: Meta) -> str | None:
        number, offset, behind = meta["pass"], meta["offset"], meta["behind"]
        if meta.get("block", 0) != self.block:  # the state is of another pipeline: the batches are read again instead
            self.begin(number)
            self.offset = self.behind = offset
            return None
        # The iterators of one dataset share the generator of its shuffle, which the state resets.
        dataset = self._dataset if number == self.number else self._source.training_of(number)
        iterator = self._iterate(dataset, endless=True)
        try:
            state = read_state(prefix)
            restore_state(iterator, state)
        except READ_ERRORS as error:
            raise CheckpointError(f"the data position {prefix} cannot be restored: {first_line(error)}") from error
        self.iterator, self._dataset = iterator, dataset
        self.number, self.offset, self.behind = number, offset, behind
        self._held = self._between = _HeldState(state, offset - behind)
        return None

    def _warn_if_large(self, prefix: str) -> None:
        size = size_of_state(prefix)
        if size > LARGE_STATE and not self._has_warned:
            self._has_warned = True
            self._announce(
                f"WARNING: the data position takes {size / 2**20:.0f} MB in each checkpoint, the content of "
                "the dataset's buffers; shuffle before decoding or batching to make it small"
            )


OTHER_BATCHES = (
    "the training data did not repeat: reading it again gave other batches (if its code draws random numbers, make the "
    "generator of these in datasets(), with a seed)"
)
FEWER_BATCHES = "the training data did not repeat: reading it again gave fewer batches"
SAME_BATCHES = (
    "the training data begins each pass with the same batch: shuffle it (Dataset.shuffle), or draw another order in "
    "each pass"
)


class ReplayedPosition(Position):
    """The pass is read again from its start, and compared by a digest over its batches.

    Data of Python code, or that is shuffled behind it, is made once for all passes. Its pass is read again on its own
    first. If that gives other batches, such as from a generator that keeps its random numbers from pass to pass, all
    passes before are read again, too.

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
        self._next = 0  # the pass that the next reading of a dataset made once begins
        self._start(0)

    def begin(self, number: int) -> None:
        if number == self.number + 1 and self.offset:
            first, self._first = self._first, self._digest.first()
            if first == self._first and not self._has_told and is_python(self._source.training):
                self._has_told = True
                self._announce(SAME_BATCHES)
        self._start(number)

    def _start(self, number: int) -> None:
        self.iterator = None  # the old one may hold the lock of a cache's file
        if self._source.is_made_once and number != self._next:
            self._source.build_anew()
            for _ in range(number):
                iter(self._source.training)  # a shuffle draws its seeds when a reading begins
        self.iterator = self._iterate(self._digest.over(self._source.training_of(number)))
        self._next = number + 1
        self.number, self.offset, self.behind = number, 0, 0

    def go_to(self, number: int, offset: int, digest: str | None) -> None:
        """Go to a place of a pass; the batches before it, with this digest, have to be read again."""
        self._start(number)
        self.offset = self.behind = offset
        self._expected = digest

    def rewind(self) -> None:
        self.go_to(self.number, self.offset, self._present())

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
        self.go_to(number, meta["offset"], meta.get("digest"))
        return None

    def caught_up(self) -> str | None:
        return OTHER_BATCHES if self._expected is not None and self._expected != self._present() else None

    def read_passes_before(self, read_to_end: Callable[[], bool]) -> bool:
        """Read the passes before the present one again, each to its end, where they may change what it gives.

        Args:
            read_to_end: reads the present pass; returns False if it was left before its end.

        Returns:
            whether they were read; the present pass then begins once more.
        """
        number, offset, digest = self.number, self.offset, self._expected
        if not number or not self._source.is_made_once:
            return False
        reached = False
        try:
            self._start(0)
            while self.number < number and read_to_end():
                self._start(self.number + 1)
            reached = self.number == number
        finally:
            if not reached:
                self._start(number)
            self.offset = self.behind = offset
            self._expected = digest
        return reached


_ONE_BY_ONE = ("_Map", "_ParallelMap", "_Options", "_Prefetch", "_Restructured", "_DenseToRagged")
_BATCHES = ("_Batch", "_ParallelBatch", "_PaddedBatch")


@dataclass(frozen=True)
class Indexed:
    """A dataset of which is known which examples each of its elements is made of.

    Attributes:
        order: of the examples.
        steps: what stands between these and the dataset, from the examples on: the size of a batch, and whether one
            that is not full is left out; or None, for data that begins anew at its end.
    """

    order: Order
    steps: tuple[tuple[int, bool] | None, ...]

    def place_of(self, offset: int) -> tuple[int, int]:
        """Which example is next after so many elements: the number of the reading, and of its example."""
        lengths: list[int | None] = [self.order.length]  # of what each step is given; None: without an end
        for step in self.steps:
            lengths.append(_length_behind(step, lengths[-1]))
        reading, place = 0, offset
        # Whoever reads the dataset begins it anew at its end, if it has one.
        for step, length in reversed(list(zip((*self.steps, None), lengths, strict=True))):
            if step is not None:
                place *= step[0]
            elif length:
                reading, place = divmod(place, length)
        return reading, place


def _length_behind(step: tuple[int, bool] | None, length: int | None) -> int | None:
    if step is None or length is None:
        return None
    size, is_full = step
    return length // size if is_full else -(-length // size)


def indexed(dataset: tf.data.Dataset) -> Indexed | None:
    """What is known of a dataset; None if it is none of a reader's, or has other stages above that."""
    steps: list[tuple[int, bool] | None] = []
    stage: Any = dataset
    while (order := order_of(stage)) is None:
        below, name = sources(stage), name_of(stage)
        if len(below) != 1 or not is_function_of_element(stage):
            return None
        if name in _BATCHES:
            size, full = stage_number(stage, "batch_size"), stage_number(stage, "drop_remainder")
            if size is None or full is None:
                return None
            steps.append((size, bool(full)))
        elif name == "_Repeat" and stage_number(stage, "count") == -1:
            steps.append(None)
        elif name not in _ONE_BY_ONE:
            return None
        (stage,) = below
    return Indexed(order, tuple(reversed(steps)))


class IndexedPosition(Position):
    """The number of batches is the place: the pipeline is begun at the example that follows from it.

    Args:
        source: see `Position`.
        announce: see `Position`.
        dataset: the first pass; nothing else reads it.
    """

    mode = "iterator"
    endless = True

    def __init__(self, source: Source, announce: Callable[[str], None], dataset: tf.data.Dataset) -> None:
        super().__init__(source, announce)
        self._dataset = dataset
        self._start(0, 0)

    def begin(self, number: int) -> None:
        self._dataset = self._source.training_of(number)
        self._start(number, 0)

    def _start(self, number: int, offset: int) -> None:
        known = indexed(self._dataset)
        assert known is not None, "the datasets of all passes are made of the same stages"
        self.iterator = None  # the old one first, which reads ahead
        known.order.go_to(*known.place_of(offset))
        self.iterator = self._iterate(self._dataset, endless=True)
        self.number, self.offset, self.behind = number, offset, 0

    def rewind(self) -> None:
        self._start(self.number, self.offset)

    def read(self, prefix: str, meta: Meta) -> str | None:
        if meta["pass"] != self.number:
            self._dataset = self._source.training_of(meta["pass"])
        self._start(meta["pass"], meta["offset"])
        return None
