"""Positions in the training data: how each moves, and how it is written to a checkpoint and restored.

`IteratorPosition`, `NumberPosition` and `GrainPosition` (in `grain`) have the mode "iterator", `ReplayPosition` has
"replay" and `RestartPosition` "restart".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf

from prototrain.checkpoint import READ_ERRORS
from prototrain.data.batches import Batch, RollingDigest, first_batch
from prototrain.data.pipeline import sources
from prototrain.data.rule import is_function_of_element
from prototrain.data.source import Source
from prototrain.errors import CheckpointError
from prototrain.readers.order import order_of
from prototrain.system.files import literal_prefix
from prototrain.system.tracebacks import first_line
from prototrain.tf_private import holds_generator, iterator_state, set_iterator_state, stage_inputs, stage_number
from prototrain.tf_private import stage_name as name_of

Place = dict[str, Any]
"""The place of a run, as JSON can hold it: the "pass", the "offset" in it, and what a kind of position adds."""
PREFETCH = 2  # batches
OTHER_BATCHES = (
    "the training data did not repeat: reading it again gave other batches (if its code draws random numbers, make the "
    "generator of these in datasets(), with a seed)"
)


class Position:
    """The place of a run in its training data, and the iterator that reads from there.

    Attributes:
        mode: how a resume returns to the place, in checkpoints and messages.
        endless: whether the iterator never ends; otherwise each pass has its own.
        iterator: gives the batches; another object after a restore or a new pass.
        number: of the pass, from 0.
        offset: how many batches of the pass were trained on.
        behind: how many of these have to be read again from the iterator, after the `passes_behind`.
        block: how many batches the iterator gives at a time, stacked; 0 for single batches.
        current: the block that is trained on, or None.
        row: of the next batch in it.
    """

    mode: ClassVar[str]
    endless: ClassVar[bool] = False

    def __init__(self, source: Source) -> None:
        self._source = source
        self.iterator: Any = None
        self.number = self.offset = self.behind = self.passes_behind = self.block = self.row = 0
        self.current: Any = None

    def begin(self, number: int) -> None:
        """Go to the start of a pass."""
        self._read(self._source.training_of(number), number, 0)

    def go(self, place: Place) -> None:
        """Go to a place. What cannot be gone to directly is `behind`, to be read when the run continues."""
        raise NotImplementedError

    def replay(self, place: Place) -> None:
        """Go to a place by reading its pass again from its start."""
        self.begin(place["pass"])
        self.offset = self.behind = place["offset"]

    def rewind(self) -> None:
        """Go back to the last batch that was trained on, after a step that read one and failed."""
        self.go(self.place())

    def read_again(self) -> None:
        """Read a batch, or a block of them, before the place of the run, and drop it."""
        if self.passes_behind or self.behind >= self.block:
            self.iterator.get_next()
            self.behind -= 0 if self.passes_behind else self.block or 1
        else:  # the place is within the block
            self.read_block()
            self.row, self.behind = self.behind, 0

    def begin_behind(self, number: int) -> None:
        """Begin to read an earlier pass, to get to the place of the run from there."""

    def difference(self) -> str | None:
        """Why the batches that were read again are not those that were trained on; None if they are."""
        return None

    def goes_further_back(self) -> bool:
        """Begin to read the first pass, if the batches read again may be others because of the passes before."""
        return False

    def _read(self, dataset: tf.data.Dataset, number: int, offset: int) -> None:
        """Begin to read a dataset, some batches ahead of their use."""
        self.iterator = self.current = None  # the old one reads ahead, and may hold the lock of a cache's file
        if self.endless and int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
            dataset = dataset.repeat()
        if self.block:  # one at the end of a pass may be shorter
            dataset = prefetched(dataset, 0).batch(self.block)
        self.iterator = iter(dataset.prefetch(1) if self.block else prefetched(dataset, PREFETCH))
        self.number, self.offset, self.behind, self.passes_behind = number, offset, 0, 0

    def place(self) -> Place:
        """The place of the run."""
        return {"pass": self.number, "offset": self.offset, "behind": self.behind}

    def write(self, prefix: str) -> Callable[[], Place]:
        """Take the place; returns a function, for any thread, that writes its files and returns the rest of it."""
        place = self.place()
        return lambda: place

    def read(self, prefix: str, place: Place) -> None:
        """Go to a place that was written; a CheckpointError if it cannot be read."""
        self.go(place)

    def look(self) -> Batch:
        """Read the first batch, and go back."""
        first = first_batch(self.iterator)
        self.rewind()
        return first

    @property
    def rows(self) -> int:
        """How many batches of the block have still to be trained on."""
        return 0 if self.current is None else int(tf.nest.flatten(self.current)[0].shape[0]) - self.row

    def row_of_block(self, row: int) -> Batch:
        """One batch of the block."""
        return dict(tf.nest.map_structure(lambda stacked: stacked[row], self.current))

    def read_block(self) -> None:
        """Read the next block."""
        self.current = None  # also if nothing can be read
        self.current, self.row = self.iterator.get_next(), 0


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


class RestartPosition(Position):
    """A resume begins a new pass."""

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
SECONDS_BETWEEN_STATES = 5.0  # that are taken between blocks: what is read in this time at most is read again
_KEY = "iterator/.ATTRIBUTES/ITERATOR_STATE"  # as tf.train.Checkpoint(iterator=...) names it


def write_state(prefix: str, state: tf.Tensor) -> Path:
    """Write the state of an iterator to files, from any thread; returns the one with its content."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], tensors=[state])
    return Path(f"{prefix}.data-00000-of-00001")


def read_state(prefix: str) -> tf.Tensor:
    """Read a state that was written."""
    with literal_prefix(prefix) as path, tf.device("CPU:0"):
        (state,) = tf.raw_ops.RestoreV2(prefix=path, tensor_names=[_KEY], shape_and_slices=[""], dtypes=[tf.variant])
    return state


def holds_shuffle(path: Path) -> bool:
    """Whether the file of a written state has the random generator of a shuffle."""
    with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return holds_generator(content)


class IteratorPosition(Position):
    """TensorFlow writes the iterator's state.

    Between two passes a state is not whole: TensorFlow has dropped the shuffle and not begun the next one, and would
    begin it in the order of the first pass. Then the last whole state is written, with the number of batches to read
    again behind it. Within a block, the state from before the block is written. If the data `reshuffles`, a whole state
    holds the generator of the shuffle.
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
        """Note a whole state, and how many batches of the pass had been read from the iterator."""
        self._held = self._between = state, passed
        self._taken_at = time.monotonic()

    def _go_to_state(self, state: tf.Tensor, passed: int, offset: int) -> None:
        # Iterators of one dataset share the generator of its shuffle, which the state resets.
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
        if place["block"] != self.block:  # the state is of another pipeline
            self.replay(place)
            return
        if place["pass"] != self.number:
            self._dataset, self.number = self._source.training_of(place["pass"]), place["pass"]
        try:
            self._go_to_state(read_state(prefix), place["offset"] - place["behind"], place["offset"])
        except READ_ERRORS as error:
            raise CheckpointError(f"the data position {prefix} cannot be restored: {first_line(error)}") from error


# -- a number ----------------------------------------------------------------------------------------------------------

_ONE_BY_ONE = ("_Map", "_ParallelMap", "_Options", "_Prefetch", "_Restructured")
_BATCHES = ("_Batch", "_ParallelBatch", "_PaddedBatch")


def indexed(dataset: tf.data.Dataset) -> Callable[[int], None] | None:
    """A function that lets the next reading of a dataset begin after so many batches.

    None if the dataset is not a reader's with ``shuffle="index"``, or has stages above it that do not tell which
    examples each of its batches is made of.
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
            is_endless = is_endless or batch is not None  # the examples are repeated, and batches go across passes
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
    """The number of batches is the place: the pipeline begins at the example that follows from it.

    Nothing else reads the `dataset` that is given for the first pass.
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
        self.iterator = None  # the old one reads ahead, in the same order
        begin_after(place["offset"])
        self._read(self._dataset, place["pass"], place["offset"])


# -- reading again -----------------------------------------------------------------------------------------------------


class ReplayPosition(Position):
    """The pass is read again from its start, and compared by a digest over its batches.

    Data of Python code is made once for all passes. Its pass is first read again alone. If that gives other batches,
    such as from a generator that continues its random numbers from pass to pass, all passes before are read again, too.
    """

    mode = "replay"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._digest = RollingDigest()
        self._expected: str | None = None  # at the place of the run, while there are batches behind
        self._next = 0  # the pass that the next reading of a dataset made once begins
        self._has_gone_back = False
        self._training: Any = None
        self.begin(0)

    def begin(self, number: int) -> None:
        self.iterator = None
        if self._source.is_made_once and number != self._next:
            self._source.rebuild()
            for _ in range(number):
                iter(self._source.training)  # a shuffle draws its seeds when a reading begins
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
        # Only what Python code makes, once for all passes, can depend on the passes before.
        if self._has_gone_back or not self.number or not self._source.is_made_once:
            return False
        self._has_gone_back = True
        self.begin_behind(0)
        return True
