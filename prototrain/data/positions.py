"""Positions in the training data, and how checkpoints save and restore them.

`IteratorPosition`, `NumberPosition` and `GrainPosition` (in `grain`) have the mode "iterator", `ReplayPosition` has
"replay" and `RestartPosition` has "restart".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf

from prototrain.checkpoint.store import READ_ERRORS
from prototrain.data.batches import Batch, RollingDigest, first_batch
from prototrain.data.pipeline import sources
from prototrain.data.rule import is_function_of_element
from prototrain.data.source import Source
from prototrain.errors import CheckpointError
from prototrain.readers.order import order_of
from prototrain.system.files import literal_prefix
from prototrain.system.tracebacks import cause
from prototrain.tf_private import holds_generator, iterator_state, set_iterator_state, stage_inputs, stage_number
from prototrain.tf_private import stage_name as name_of

Place = dict[str, Any]
"""A saved position in JSON values: the "pass", the "offset" in it, and entries that subclasses add."""
PREFETCH = 2  # batches
OTHER_BATCHES = (
    "the training data did not repeat: reading it again gave other batches (if its code draws random numbers, make the "
    "generator of these in datasets(), with a seed)"
)


class Position:
    """The position of a run in its training data, and the iterator that reads from there.

    Attributes:
        mode: how a resumed run returns to the position; used in checkpoints and messages.
        endless: whether the iterator never ends; otherwise each pass has its own iterator.
        iterator: iterator over batches; replaced by a restore or a new pass.
        number: index of the pass, from 0.
        offset: number of batches trained on in the pass.
        behind: number of these batches to read again, after the `passes_behind`.
        passes_behind: number of earlier passes to read again.
        block: number of stacked batches that the iterator returns at a time; 0 for single batches.
        current: the current block, or None.
        row: row of the next batch in the block.
    """

    mode: ClassVar[str]
    endless: ClassVar[bool] = False

    def __init__(self, source: Source) -> None:
        self._source = source
        self.iterator: Any = None
        self.number = self.offset = self.behind = self.passes_behind = self.block = self.row = 0
        self.current: Any = None

    def begin(self, number: int) -> None:
        """Move to the start of a pass."""
        self._read(self._source.training_of(number), number, 0)

    def go(self, place: Place) -> None:
        """Move to a saved position; sets `behind` if batches must be read again when the run continues."""
        raise NotImplementedError

    def replay(self, place: Place) -> None:
        """Move to a saved position by reading its pass again from the start."""
        self.begin(place["pass"])
        self.offset = self.behind = place["offset"]

    def rewind(self) -> None:
        """Return to the position after the last completed step, after a step that read a batch and failed."""
        self.go(self.place())

    def read_again(self) -> None:
        """Read and drop a batch or block before the position of the run."""
        if self.passes_behind or self.behind >= self.block:
            self.iterator.get_next()
            self.behind -= 0 if self.passes_behind else self.block or 1
        else:  # the position is within the block
            self.read_block()
            self.row, self.behind = self.behind, 0

    def begin_behind(self, number: int) -> None:
        """Start to read an earlier pass, and continue from there to the position of the run."""

    def difference(self) -> str | None:
        """Return why the batches read again differ from those trained on, or None if they are equal."""
        return None

    def goes_further_back(self) -> bool:
        """Start to read the first pass if earlier passes may affect the batches; returns whether it did."""
        return False

    def _read(self, dataset: tf.data.Dataset, number: int, offset: int) -> None:
        """Start to read a dataset with prefetching."""
        self.iterator = self.current = None  # the old iterator prefetches, and may lock a cache file
        if self.endless and int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
            dataset = dataset.repeat()
        if self.block:  # the last block of a pass may be shorter
            dataset = prefetched(dataset, 0).batch(self.block)
        self.iterator = iter(dataset.prefetch(1) if self.block else prefetched(dataset, PREFETCH))
        self.number, self.offset, self.behind, self.passes_behind = number, offset, 0, 0

    def place(self) -> Place:
        """Return the position of the run."""
        return {"pass": self.number, "offset": self.offset, "behind": self.behind}

    def write(self, prefix: str) -> Callable[[], Place]:
        """Capture the position; returns a function that writes its files, from any thread, and returns the place."""
        place = self.place()
        return lambda: place

    def read(self, prefix: str, place: Place) -> None:
        """Restore a written position; raises a CheckpointError if it cannot be read."""
        self.go(place)

    def look(self) -> Batch:
        """Return the first batch without moving."""
        first = first_batch(self.iterator)
        self.rewind()
        return first

    @property
    def rows(self) -> int:
        """The number of batches left in the block."""
        return 0 if self.current is None else int(tf.nest.flatten(self.current)[0].shape[0]) - self.row

    def row_of_block(self, row: int) -> Batch:
        """Return one batch of the block."""
        return dict(tf.nest.map_structure(lambda stacked: stacked[row], self.current))

    def read_block(self) -> None:
        """Read the next block."""
        self.current = None  # in case reading fails
        self.current, self.row = self.iterator.get_next(), 0


def prefetched(dataset: Any, batches: int) -> tf.data.Dataset:
    """Add a prefetch of `batches` batches, unless the dataset ends with one.

    A final ``prefetch(tf.data.AUTOTUNE)`` gets a fixed size. TensorFlow lets its buffer grow up to half of the memory,
    and every checkpoint contains the buffer.
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


class RestartPosition(Position):
    """A position that a resumed run replaces by the start of a new pass."""

    mode = "restart"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._read(source.training, 0, 0)

    def go(self, place: Place) -> None:
        self.begin(place["pass"] + 1)

    def rewind(self) -> None:
        pass  # the batch of the failed step is lost


# -- the state of TensorFlow's iterator --------------------------------------------------------------------------------

NOT_SAVABLE = (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)
LARGE_STATE = 100 * 2**20  # bytes
SECONDS_BETWEEN_STATES = 5.0  # between two captured states: a resumed run reads at most this much again
_KEY = "iterator/.ATTRIBUTES/ITERATOR_STATE"  # as tf.train.Checkpoint(iterator=...) names it


def write_state(prefix: str, state: tf.Tensor) -> Path:
    """Write the state of an iterator, from any thread; returns the data file."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], tensors=[state])
    return Path(f"{prefix}.data-00000-of-00001")


def read_state(prefix: str) -> tf.Tensor:
    """Read a written iterator state, a variant scalar."""
    with literal_prefix(prefix) as path, tf.device("CPU:0"):
        (state,) = tf.raw_ops.RestoreV2(prefix=path, tensor_names=[_KEY], shape_and_slices=[""], dtypes=[tf.variant])
    return state


def holds_shuffle(path: Path) -> bool:
    """Return whether the file of a written state contains the random generator of a shuffle."""
    with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return holds_generator(content)


class IteratorPosition(Position):
    """A position that is the state of TensorFlow's iterator.

    Between two passes the state is incomplete: TensorFlow has dropped the shuffle, and a restored iterator would start
    the next one in the order of the first pass. In this case the last complete state is written, with the number of
    batches to read again after it. Within a block, the state before the block is written. If the data `reshuffles`, a
    complete state contains the generator of the shuffle.
    """

    mode = "iterator"
    endless = True

    def __init__(self, source: Source, announce: Callable[[str], None], *, reshuffles: bool) -> None:
        super().__init__(source)
        self._announce: Callable[[str], None] | None = announce
        self._reshuffles = reshuffles
        self._start(source.training, 0)

    def begin(self, number: int) -> None:
        self._start(self._source.training_of(number), number)

    def _start(self, dataset: tf.data.Dataset, number: int) -> None:
        self._dataset = dataset
        self._read(dataset, number, 0)
        self._hold(iterator_state(self.iterator), 0)

    def _hold(self, state: tf.Tensor, passed: int) -> None:
        """Store a complete state, and the number of batches of the pass that were read before it."""
        self._held = self._between = state, passed
        self._taken_at = time.monotonic()

    def _go_to_state(self, state: tf.Tensor, passed: int, offset: int) -> None:
        # Iterators of one dataset share the generator of its shuffle. The state resets it.
        self._read(self._dataset, self.number, offset)
        set_iterator_state(self.iterator, state)
        self.behind = offset - passed
        self._hold(state, passed)

    def rewind(self) -> None:
        self._go_to_state(*self._held, self.offset)

    def read_block(self) -> None:
        if self._between is self._held or time.monotonic() - self._taken_at > SECONDS_BETWEEN_STATES:
            self._between = iterator_state(self.iterator), self.offset - self.behind
            self._taken_at = time.monotonic()
        super().read_block()

    def write(self, prefix: str) -> Callable[[], Place]:
        place, block = self.place(), self.block
        new = self._between if self.rows else (iterator_state(self.iterator), self.offset - self.behind)

        def finish() -> Place:
            path = write_state(prefix, new[0])
            size = path.stat().st_size
            if size > LARGE_STATE and self._announce is not None:
                self._announce(
                    f"WARNING: the data position takes {size / 2**20:.0f} MB in each checkpoint, the content of "
                    "the dataset's buffers; shuffle before decoding or batching to make it small"
                )
                self._announce = None
            if not self._reshuffles or holds_shuffle(path):
                self._held = new
            else:
                write_state(prefix, self._held[0])
            return {**place, "behind": place["offset"] - self._held[1], "block": block}

        return finish

    def read(self, prefix: str, place: Place) -> None:
        if place["block"] != self.block:  # the state belongs to another pipeline
            self.replay(place)
            return
        if place["pass"] != self.number:
            self._dataset, self.number = self._source.training_of(place["pass"]), place["pass"]
        try:
            self._go_to_state(read_state(prefix), place["offset"] - place["behind"], place["offset"])
        except READ_ERRORS as error:
            raise CheckpointError(f"the data position {prefix} cannot be restored: {cause(error)}") from error


# -- a number ----------------------------------------------------------------------------------------------------------

_ONE_BY_ONE = ("_Map", "_ParallelMap", "_Options", "_Prefetch", "_Restructured")
_BATCHES = ("_Batch", "_ParallelBatch", "_PaddedBatch")


def indexed(dataset: tf.data.Dataset) -> Callable[[int], None] | None:
    """Return a function that makes the next iteration over a dataset start after a number of batches.

    Returns:
        None if the source is not a reader with ``shuffle="index"``, or if later stages do not determine which examples
        are in each batch.
    """
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
            is_endless = is_endless or batch is not None  # examples repeat, and batches span passes
        elif name not in _ONE_BY_ONE:
            return None
        (stage,) = below
    size, is_cut = batch or (1, 1)
    if size is None or is_cut is None:
        return None
    length = order.length
    in_pass = length // size if is_cut else -(-length // size)

    def begin_after(batches: int) -> None:
        reading, start = divmod(batches * size, length)
        if not is_endless:
            reading, start = batches // in_pass, batches % in_pass * size
        order.go_to(reading, start)

    return begin_after


class NumberPosition(Position):
    """A position that is a number of batches; the pipeline starts at the matching example.

    Args:
        source: the datasets of the run.
        dataset: the training dataset of the first pass; nothing else may read it.
    """

    mode = "iterator"
    endless = True

    def __init__(self, source: Source, dataset: tf.data.Dataset) -> None:
        super().__init__(source)
        self._dataset = dataset
        self.go(self.place())

    def begin(self, number: int) -> None:
        self.go({"pass": number, "offset": 0})

    def go(self, place: Place) -> None:
        if place["pass"] != self.number:
            self._dataset = self._source.training_of(place["pass"])
        begin_after = indexed(self._dataset)
        assert begin_after is not None, "the datasets of all passes are made of the same stages"
        self.iterator = None  # the old iterator prefetches from the same order
        begin_after(place["offset"])
        self._read(self._dataset, place["pass"], place["offset"])


# -- reading again -----------------------------------------------------------------------------------------------------


class ReplayPosition(Position):
    """A position that is reached by reading the pass again; a digest over its batches verifies them.

    A dataset of Python code is built once for all passes. Its current pass is read again first. If the batches differ,
    such as from a generator that continues its random numbers across passes, all earlier passes are read again too.
    """

    mode = "replay"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._digest = RollingDigest()
        self._expected: str | None = None  # the digest at the position of the run, while batches are read again
        self._next = 0  # the pass that the next iteration over a dataset built once starts
        self._has_gone_back = False
        self._training: Any = None
        self.begin(0)

    def begin(self, number: int) -> None:
        self.iterator = None
        if self._source.is_made_once and number != self._next:
            self._source.rebuild()
            for _ in range(number):
                iter(self._source.training)  # a shuffle draws its seeds when an iteration starts
        if (training := self._source.training_of(number)) is not self._training:
            self._training, self._digested = training, self._digest.over(training)
        self._read(self._digested, number, 0)
        self._next = number + 1

    def place(self) -> Place:
        is_behind = self.behind or self.passes_behind
        return {**super().place(), "digest": self._expected if is_behind else self._digest.after(self.offset)}

    def go(self, place: Place) -> None:
        self.replay(place)
        self._expected = place["digest"]

    def replay(self, place: Place) -> None:
        self.number, self.offset, self._expected = place["pass"], place["offset"], None
        self._has_gone_back = False
        self.begin_behind(self.number)

    def begin_behind(self, number: int) -> None:
        offset, run = self.offset, self.number
        self.begin(number)
        self.number, self.offset, self.behind, self.passes_behind = run, offset, offset, run - number

    def difference(self) -> str | None:
        return OTHER_BATCHES if self._expected not in (None, self._digest.after(self.offset)) else None

    def goes_further_back(self) -> bool:
        # Only a dataset of Python code, built once for all passes, can depend on earlier passes.
        if self._has_gone_back or not self.number or not self._source.is_made_once:
            return False
        self._has_gone_back = True
        self.begin_behind(0)
        return True
