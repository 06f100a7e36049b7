"""Positions in the training data: how each moves, and how it is written to a checkpoint and restored.

`IteratorPosition`, `IndexedPosition` and `GrainPosition` (in `adapters`) have the mode "iterator", `ReplayedPosition`
has "replay" and `RestartedPosition` "restart".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from prototrain.checkpoint import READ_ERRORS
from prototrain.data.batches import RollingDigest, first_batch
from prototrain.data.pipeline import sources
from prototrain.data.rule import is_function_of_element
from prototrain.data.source import Source
from prototrain.errors import CheckpointError
from prototrain.readers.order import Order, order_of
from prototrain.system.files import literal_prefix
from prototrain.system.tracebacks import first_line
from prototrain.tf_private import holds_generator, iterator_state, set_iterator_state, stage_inputs, stage_number
from prototrain.tf_private import stage_name as name_of

Meta = dict[str, Any]


class Position:
    """A place in the data; each class has its way of returning to it.

    Args:
        source: builds the datasets.
        announce: called with a line of text that the user should know.

    Attributes:
        mode: the class's name, in checkpoints and in messages.
        endless: whether the iterator never ends; otherwise each pass has its own.
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

    def replay(self, number: int, offset: int) -> None:
        """Go to a place of a pass, whose batches before it have to be read again."""
        self.begin(number)
        self.offset = self.behind = offset

    def use_blocks(self, block: int) -> None:
        """Have the iterator give so many batches at a time, before the first one is trained on."""
        self.block = block
        self.begin(self.number)

    @property
    def rows(self) -> int:
        """How many batches of the present block have still to be trained on."""
        return 0 if self.current is None else int(tf.nest.flatten(self.current)[0].shape[0]) - self.row

    def row_of_block(self, row: int) -> dict[str, Any]:
        """One batch of the present block."""
        return dict(tf.nest.map_structure(lambda stacked: stacked[row], self.current))

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
        """Go to a place that was written; returns why it is not the exact one, or None.

        Raises:
            CheckpointError: the files cannot be read; the present place stays.
        """
        raise NotImplementedError

    def caught_up(self) -> str | None:
        """Say why the batches that were read again are not those that were trained on; None if they are."""
        return None

    def begin_again(self, read_to_end: Callable[[], bool]) -> bool:
        """Go to the start of the present pass by reading those before it again, where they may change what it gives.

        `read_to_end` reads a pass and returns False if it was left before its end. Returns whether all were read.
        """
        return False


class RestartedPosition(Position):
    """Each run starts a new pass, for the `reason` that is given."""

    mode = "restart"

    def __init__(self, source: Source, announce: Callable[[str], None], reason: str) -> None:
        super().__init__(source, announce)
        self._reason = reason
        self.iterator = self._iterate(source.training)

    def rewind(self) -> None:
        pass  # the batch of the failed step is lost, as is the rest of the pass with a resume

    def read(self, prefix: str, meta: Meta) -> str | None:
        self.begin(meta["pass"] + 1)
        return f"the training data starts again: {self._reason}"


PREFETCH = 2  # batches


def iterate(dataset: tf.data.Dataset, *, endless: bool = False, block: int = 0) -> Any:
    """Begin reading a dataset, single batches or stacked ones (fewer at the end of a pass), some ahead of their use."""
    if endless and int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
        dataset = dataset.repeat()
    return iter(prefetched(dataset, 0).batch(block).prefetch(1) if block else prefetched(dataset, PREFETCH))


def prefetched(dataset: Any, batches: int) -> tf.data.Dataset:
    """Have so many batches made ahead of their use, if the dataset does not do so.

    The buffer of ``prefetch(tf.data.AUTOTUNE)`` at the end is given a length: TensorFlow lets it grow up to half of the
    memory, and all of it is in every checkpoint.
    """
    last, is_repeated = dataset, False
    if name_of(last) == "_Repeat" and stage_number(last, "count") == -1:
        ((last,), is_repeated) = stage_inputs(last), True
    if name_of(last) != "_Prefetch":
        return dataset.prefetch(batches) if batches else dataset
    if stage_number(last, "buffer_size") != tf.data.AUTOTUNE:
        return dataset
    made = stage_inputs(last)[0].prefetch(PREFETCH)
    return made.repeat() if is_repeated else made


NOT_SAVABLE = (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)
_KEY = "iterator/.ATTRIBUTES/ITERATOR_STATE"  # as tf.train.Checkpoint(iterator=...) names it


def write_state(prefix: str, state: tf.Tensor) -> Path:
    """Write the state of an iterator to files, from any thread; returns the one with its content."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], tensors=[state])
    return Path(f"{prefix}.data-00000-of-00001")


def read_state(prefix: str) -> tf.Tensor:
    """Read a state that was written.

    Raises:
        tf.errors.OpError: there is none.
    """
    with literal_prefix(prefix) as path, tf.device("CPU:0"):
        (state,) = tf.raw_ops.RestoreV2(prefix=path, tensor_names=[_KEY], shape_and_slices=[""], dtypes=[tf.variant])
    return state


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


def holds_shuffle(path: Path) -> bool:
    """Whether the file of a written state has the random generator of a shuffle."""
    with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return holds_generator(content)


class IteratorPosition(Position):
    """TensorFlow writes the iterator's state.

    Between two passes a state is not whole: TensorFlow has dropped the shuffle and not begun the next one, and would
    begin it in the order of the first pass. The last whole state is written instead, with more batches
    to be read behind it; so it is within a block of batches. If the data `reshuffles`, a whole state holds the
    generator of the shuffle.

    Raises:
        NOT_SAVABLE: TensorFlow cannot save the iterator.
    """

    mode = "iterator"
    endless = True

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
        self._held = self._between = _HeldState(iterator_state(self.iterator), 0)
        self._taken_at = time.monotonic()

    def read_block(self) -> None:
        if self._between is self._held or time.monotonic() - self._taken_at > SECONDS_BETWEEN_STATES:
            self._between = _HeldState(iterator_state(self.iterator), self.offset - self.behind)
            self._taken_at = time.monotonic()
        super().read_block()

    def rewind(self) -> None:
        # The old one first: it reads ahead, and iterators of one dataset share the generator of its shuffle.
        self.iterator = None
        held, self.iterator = self._held, self._iterate(self._dataset, endless=True)
        set_iterator_state(self.iterator, held.state)
        self._between = held
        self.behind = self.offset - held.passed

    def write(self, prefix: str) -> Callable[[], Meta]:
        number, offset = self.number, self.offset
        # Within a block the iterator is ahead of the run: the state from between two blocks is written.
        new = self._between if self.rows else _HeldState(iterator_state(self.iterator), offset - self.behind)

        def finish() -> Meta:
            path = write_state(prefix, new.state)
            self._warn_if_large(path.stat().st_size)
            held = self._held if self._reshuffles and not holds_shuffle(path) else new
            if held is not new:
                write_state(prefix, held.state)
            self._held = held
            return {"offset": offset, "behind": offset - held.passed, "pass": number, "block": self.block}

        return finish

    def read(self, prefix: str, meta: Meta) -> str | None:
        number, offset, behind = meta["pass"], meta["offset"], meta["behind"]
        if meta.get("block", 0) != self.block:  # the state is of another pipeline: the batches are read again instead
            self.replay(number, offset)
            return None
        # The iterators of one dataset share the generator of its shuffle, which the state resets.
        dataset = self._dataset if number == self.number else self._source.training_of(number)
        iterator = self._iterate(dataset, endless=True)
        try:
            state = read_state(prefix)
            set_iterator_state(iterator, state)
        except READ_ERRORS as error:
            raise CheckpointError(f"the data position {prefix} cannot be restored: {first_line(error)}") from error
        self.iterator, self._dataset = iterator, dataset
        self.number, self.offset, self.behind = number, offset, behind
        self._held = self._between = _HeldState(state, offset - behind)
        return None

    def _warn_if_large(self, size: int) -> None:
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


class ReplayedPosition(Position):
    """The pass is read again from its start, and compared by a digest over its batches.

    Data of Python code, or that is shuffled behind it, is made once for all passes. Its pass is read again on its own
    first. If that gives other batches, such as from a generator that keeps its random numbers from pass to pass, all
    passes before are read again, too.
    """

    mode = "replay"

    def __init__(self, source: Source, announce: Callable[[str], None]) -> None:
        super().__init__(source, announce)
        self._digest = RollingDigest()
        self._expected: str | None = None  # at the present offset, while there are batches behind
        self._next = 0  # the pass that the next reading of a dataset made once begins
        self.begin(0)

    def begin(self, number: int) -> None:
        self.iterator = None  # the old one may hold the lock of a cache's file
        if self._source.is_made_once and number != self._next:
            self._source.rebuild()
            for _ in range(number):
                iter(self._source.training)  # a shuffle draws its seeds when a reading begins
        self.iterator = self._iterate(self._digest.over(self._source.training_of(number)))
        self._next = number + 1
        self.number, self.offset, self.behind = number, 0, 0
        self._expected = None

    def replay(self, number: int, offset: int, digest: str | None = None) -> None:
        super().replay(number, offset)
        self._expected = digest

    def rewind(self) -> None:
        self.replay(self.number, self.offset, self._present())

    def write(self, prefix: str) -> Callable[[], Meta]:
        finish = super().write(prefix)
        digest = self._present()
        return lambda: {**finish(), "digest": digest}

    def _present(self) -> str | None:
        """The digest of the batches that were trained on."""
        return self._expected if self.behind else self._digest.after(self.offset)

    def read(self, prefix: str, meta: Meta) -> str | None:
        self.replay(meta["pass"], meta["offset"], meta.get("digest"))
        return None

    def caught_up(self) -> str | None:
        return OTHER_BATCHES if self._expected is not None and self._expected != self._present() else None

    def begin_again(self, read_to_end: Callable[[], bool]) -> bool:
        # Only what Python code makes, once for all passes, can depend on the passes before.
        number, offset, digest, is_there = self.number, self.offset, self._expected, False
        if not number or not self._source.is_made_once:
            return False
        try:
            self.begin(0)
            while self.number < number and read_to_end():
                self.begin(self.number + 1)
            is_there = self.number == number
        finally:
            if not is_there:
                self.begin(number)
            self.offset = self.behind = offset
            self._expected = digest
        return is_there


_ONE_BY_ONE = ("_Map", "_ParallelMap", "_Options", "_Prefetch", "_Restructured")
_BATCHES = ("_Batch", "_ParallelBatch", "_PaddedBatch")


@dataclass(frozen=True)
class Indexed:
    """A dataset of which is known which examples each of its batches is made of.

    Attributes:
        order: of the examples.
        size: of a batch.
        is_cut: whether a batch at the end of a pass that is not full is left out.
        is_endless: whether the examples are repeated, so that batches go across it.
    """

    order: Order
    size: int
    is_cut: bool
    is_endless: bool

    def place_of(self, offset: int) -> tuple[int, int]:
        """Which example is next after so many batches: the number of the reading, and of its example."""
        length = self.order.length
        if self.is_endless:
            return divmod(offset * self.size, length)
        reading, batch = divmod(offset, length // self.size if self.is_cut else -(-length // self.size))
        return reading, batch * self.size


def indexed(dataset: tf.data.Dataset) -> Indexed | None:
    """What is known of a dataset; None if it is none of a reader's, or has other stages above that."""
    batch: tuple[int | None, int | None] | None = None
    is_endless = False
    stage: Any = dataset
    while (order := order_of(stage)) is None:
        below, name = sources(stage), name_of(stage)
        if len(below) != 1 or not is_function_of_element(stage):
            return None
        if name in _BATCHES and batch is None:
            batch = stage_number(stage, "batch_size"), stage_number(stage, "drop_remainder")
        elif name == "_Repeat" and stage_number(stage, "count") == -1:
            is_endless = is_endless or batch is not None
        elif name not in _ONE_BY_ONE:
            return None
        (stage,) = below
    size, is_cut = batch or (1, 1)
    return None if size is None or is_cut is None else Indexed(order, size, bool(is_cut), is_endless)


class IndexedPosition(Position):
    """The number of batches is the place: the pipeline is begun at the example that follows from it.

    Nothing else reads the `dataset` that is given for the first pass.
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
