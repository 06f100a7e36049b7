"""The positions in the training data: how a run returns to one, and the choice between them."""

from __future__ import annotations

import json
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.checkpoint.state import restore_errors
from prototrain.checkpoint.store import READ_ERRORS
from prototrain.data.adapters import GRAIN, named_batch, read_grain
from prototrain.data.batches import Datasets, RollingDigest
from prototrain.data.iterator import DataIterator, Position
from prototrain.data.pipeline import (
    choose_mode,
    is_file_cache,
    is_function_of_element,
    reshuffles,
    shares_generators,
    sources,
    stages,
)
from prototrain.data.source import Share, Source
from prototrain.errors import CheckpointError, DataError
from prototrain.readers.order import Order, order_of
from prototrain.system.files import require_literal
from prototrain.system.tracebacks import cause
from prototrain.tf_private import (
    holds_generator,
    iterator_state,
    set_iterator_state,
    stage_name,
    stage_number,
    taking_python_functions,
)

LARGE_STATE = 100 * 2**20  # bytes
SECONDS_BETWEEN_STATES = 5.0  # of blocks: a resumed run reads at most this much again
_NOT_SAVABLE = (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)
_KEY = "iterator/.ATTRIBUTES/ITERATOR_STATE"  # as tf.train.Checkpoint(iterator=...) names it
_KEPT_STATES = 2048  # of a Grain iterator; more than are ever read in a call and prefetched
_ONE_BY_ONE = ("_Map", "_ParallelMap", "_Options", "_Prefetch", "_Restructured")
_BATCHES = ("_Batch", "_ParallelBatch", "_PaddedBatch")


def training_data(
    make: Callable[[], Datasets],
    *,
    seed: int,
    announce: Callable[[str], None],
    batch_size: int,
    repeat: bool,
    share: Share,
    data_position: str,
) -> DataIterator:
    """Return the training data of a run.

    `make` is called again for each pass if the data depends on the pass. `batch_size` is that of the batch of zeros
    which is the first batch of live data. Without `repeat`, training ends with a finite dataset.
    """
    source = Source(make, seed, announce, share=share, repeat=repeat)
    mode, reason = choose_mode(source.training, data_position)
    if source.is_single_pass:
        return DataIterator(source, "each run reads it from its start to its end", batch_size=batch_size)
    if data_position in ("auto", "iterator"):
        if hasattr(source.training, GRAIN):
            return GrainIterator(source)
        if (shared := indexed(source.training)) is not None:
            dataset = source.training_of(0)  # used only here: each iteration has a new order
            if (own := indexed(dataset)) is not None and own[0] is not shared[0]:
                return IndexedIterator(source, dataset)
            if source.is_made_once:
                return DataIterator(source, "its reader was made outside of datasets()")
    if mode == "iterator":
        try:
            if any(map(is_file_cache, stages(source.training))):
                raise DataError('trainer.data_position cannot be "iterator": the data is cached in a file')
            return StateIterator(source)
        except _NOT_SAVABLE as error:
            reason = f"TensorFlow cannot save its iterator: {cause(error)}"
            if data_position == "iterator":
                raise DataError(f"trainer.data_position: {reason}") from error
    if mode != "restart":
        looked_at = source.training
        data = ReplayIterator(source, reason, batch_size=batch_size)
        if not (source.repeats_itself and shares_generators(data.training, looked_at)):
            return data
        reason = "it has a shuffle that was made outside of datasets()"
    return DataIterator(source, reason, batch_size=batch_size)


def write_state(prefix: str, state: tf.Tensor) -> Path:
    """Write the state of an iterator, from any thread; returns the data file."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], tensors=[state])
    return Path(f"{prefix}.data-00000-of-00001")


def read_state(prefix: str) -> tf.Tensor:
    """Read a written iterator state, a variant scalar."""
    prefix = require_literal(prefix)
    with tf.device("CPU:0"):
        (state,) = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], dtypes=[tf.variant])
    return state


class StateIterator(DataIterator):
    """Training data whose position is the state of TensorFlow's iterator.

    Between two passes the state is incomplete: TensorFlow has dropped the shuffle, and a restored iterator would start
    the next one in the order of the first pass. In this case the last complete state is written, with the number of
    batches to read again after it. Within a block, the state before an earlier block is written. If the data
    reshuffles, a complete state contains the generator of the shuffle.
    """

    mode = "iterator"
    endless = True

    def __init__(self, source: Source) -> None:
        self._dataset: Any = None
        self._held: Any = None  # the last complete state, and the number of batches of the pass before it
        self._reshuffles = reshuffles(source.training)
        self._is_warned = False
        self._captured_at = 0.0
        super().__init__(source)

    def use_blocks(self) -> None:
        self._held = None  # the state of another pipeline
        super().use_blocks()

    def _open(self, position: Position) -> tuple[tf.data.Dataset, int]:
        if self._held is None or position["pass"] != self.number or position["offset"] < self._held[1]:
            is_first = self._dataset is None
            self._dataset = self._source.training if is_first else self._source.training_of(position["pass"])
            self._held = None
        return self._dataset, 0 if self._held is None else self._held[1]

    def _seek(self, position: Position) -> None:
        super()._seek(position)
        if self._held is None:
            self._held = iterator_state(self.iterator), 0
        else:  # iterators of one dataset share the generator of its shuffle, which the state resets
            set_iterator_state(self.iterator, self._held[0])
        self._before_block = self._held

    def _read_block(self) -> None:
        # Not before each block, since capturing a state takes long.
        if self._before_block is self._held or time.monotonic() - self._captured_at > SECONDS_BETWEEN_STATES:
            self._before_block = iterator_state(self.iterator), self.offset - self.behind
            self._captured_at = time.monotonic()
        super()._read_block()

    def _write(self, prefix: str) -> Callable[[], Position]:
        if self._reads_ahead:
            self.rewind()
        position, block = self._position(), self.block
        in_block = self._rows_left > 0
        new = self._before_block if in_block else (iterator_state(self.iterator), self.offset - self.behind)

        def finish() -> Position:
            path = write_state(prefix, new[0])
            size = path.stat().st_size
            if size > LARGE_STATE and not self._is_warned:
                self._is_warned = True
                self._announce(
                    f"WARNING: the data position takes {size / 2**20:.0f} MB in each checkpoint, the content of "
                    "the dataset's buffers; shuffle before decoding or batching to make it small"
                )
            with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                is_complete = not self._reshuffles or holds_generator(content)
            if is_complete:
                self._held = new
            else:
                write_state(prefix, self._held[0])
            self._before_block = self._held
            return {**position, "behind": position["offset"] - self._held[1], "block": block}

        return finish

    def _restore(self, prefix: str, position: Position) -> None:
        if position["block"] != self.block:  # the state belongs to another pipeline
            self._held = None
            self._seek(position)
            return
        if position["pass"] != self.number:
            self._dataset, self.number = self._source.training_of(position["pass"]), position["pass"]
        try:
            self._held = read_state(prefix), position["offset"] - position["behind"]
            self._seek(position)
        except READ_ERRORS as error:
            raise CheckpointError(f"the data position {prefix} cannot be restored: {cause(error)}") from error


def indexed(dataset: tf.data.Dataset) -> tuple[Order, int, int] | None:
    """Return the order of a dataset's source, the batch size, and the number of examples in a pass over the batches.

    Returns None if the source is not a reader with ``shuffle="index"``, or if later stages do not determine which
    examples are in each batch.
    """
    batch: tuple[int | None, int | None] | None = None
    is_endless = False
    stage: Any = dataset
    while (order := order_of(stage)) is None:
        below, name = sources(stage), stage_name(stage)
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
    batches = order.length // size if is_cut else -(-order.length // size)
    return order, size, order.length if is_endless else batches * size


class IndexedIterator(DataIterator):
    """Training data whose position is a number of batches; the pipeline starts at the matching example.

    Nothing else may read `dataset`, the training dataset of the first pass.
    """

    mode = "iterator"
    endless = True

    def __init__(self, source: Source, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        super().__init__(source)

    def _open(self, position: Position) -> tuple[tf.data.Dataset, int]:
        if position["pass"] != self.number:
            self._dataset = self._source.training_of(position["pass"])
        found = indexed(self._dataset)
        assert found is not None, "the datasets of all passes are made of the same stages"
        order, size, examples = found
        order.go_to(*divmod(position["offset"] * size, examples))
        return self._dataset, position["offset"]


class GrainIterator(DataIterator):
    """Training data whose position is the state of a Grain iterator.

    Grain repeats a `MapDataset` and reshuffles it in each pass. An `IterDataset` is restarted at its end.
    """

    mode = "iterator"

    def __init__(self, source: Source) -> None:
        self._states: dict[int, str] = {}  # by the number of batches of the pass
        self._close: Callable[[], object] = lambda: None
        with taking_python_functions() as self._functions:
            spec = source.training.element_spec
            self._dataset = tf.data.Dataset.from_generator(self._batches, output_signature=spec)
        super().__init__(source)

    def _open(self, position: Position) -> tuple[tf.data.Dataset, int]:
        self._close()
        given, state = getattr(self._source.training, GRAIN), position.get("grain")
        is_finite = hasattr(given, "to_iter_dataset") and len(given) < sys.maxsize  # a MapDataset
        reading = iter(read_grain(given.repeat() if is_finite else given))
        self._close = weakref.finalize(self, _close, reading)
        if state is not None:
            with restore_errors("the position in the Grain dataset"):
                reading.set_state(json.loads(state))
        passed = 0 if state is None else position["offset"]
        self._reading, self._states = reading, {passed: json.dumps(reading.get_state())}
        return self._dataset, passed

    def _batches(self) -> Iterator[Any]:
        reading, states = self._reading, self._states
        for number, batch in enumerate(reading, start=min(states) + 1):
            states[number] = json.dumps(reading.get_state())  # a copy: Grain may change it later
            states.pop(number - _KEPT_STATES, None)
            yield named_batch(batch)
        _close(reading)

    def _position(self) -> Position:
        return {**super()._position(), "grain": self._states.get(self.offset)}


def _close(reading: Any) -> None:
    """End the threads of a Grain iterator."""
    with suppress(Exception):  # at interpreter shutdown, modules may be gone
        reading.close()


class ReplayIterator(DataIterator):
    """Training data that is read again up to the position; a digest over the batches of the pass verifies them.

    A dataset of Python code is built once for all passes. Its current pass is read again first. If the batches differ,
    such as from a generator that continues its random numbers across passes, all earlier passes are read again too.

    Attributes:
        training: the training dataset of the pass.
    """

    mode = "replay"

    def __init__(self, source: Source, reason: str, *, batch_size: int) -> None:
        self._digest = RollingDigest()
        self.training: Any = None
        self._next = 0  # the pass that the next iteration over a dataset built once starts
        super().__init__(source, reason, batch_size=batch_size)

    def _open(self, position: Position) -> tuple[tf.data.Dataset, int]:
        number = position["pass"]
        if self._source.is_made_once and number != self._next:
            self._source.rebuild()
            for _ in range(number):
                iter(self._source.training)  # a shuffle draws its seeds when an iteration starts
        self._next = number + 1
        dataset = self._source.training_of(number)
        if dataset is not self.training:
            self.training, self._digested = dataset, self._digest.over(dataset)
        return self._digested, 0

    def _position(self) -> Position:
        digest = self._expected_digest if self.behind else self._digest.after(self.offset)
        return {**super()._position(), "digest": digest}

    def _repeats(self) -> bool:
        return self._expected_digest in (None, self._digest.after(self.offset))
