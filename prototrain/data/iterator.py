"""The training data of a run: an endless stream of batches with a position to save and restore."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import tensorflow as tf

from prototrain.data.batches import Batch, batch_of_zeros, by_path, digest_of, first_batch, first_dimensions
from prototrain.data.pipeline import describe_pipeline, first_difference, stages
from prototrain.data.source import Source
from prototrain.errors import CheckpointError, ConfigError, DataError, StopTraining
from prototrain.readers.flows import is_live
from prototrain.system.signals import run_interruptibly
from prototrain.system.terminal import ALLOW_CHANGED_DATA, FRESH, announcing
from prototrain.system.tracebacks import cause
from prototrain.tf_private import iterator_handle, stage_inputs, stage_name, stage_number

Position = dict[str, Any]
"""A saved position in JSON values: the "pass", the "offset" in it, and entries that subclasses add."""
_START: Position = {"pass": 0, "offset": 0}
SAME_DATA = "each worker reads all the training data"
OTHER_FIRST_BATCH = (
    "the training data did not repeat: its first batch is another one (have its files changed, or does its code draw "
    "random numbers?)"
)
OTHER_SIZES = "files of the training data have other sizes than they had"
FEWER_BATCHES = "the training data did not repeat: reading it again gave fewer batches"
OTHER_BATCHES = (
    "the training data did not repeat: reading it again gave other batches (if its code draws random numbers, "
    "create the random generator in datasets(), with a seed)"
)

PREFETCH = 2  # batches
LONGEST_BLOCK = 100  # batches; callbacks usually run at multiples of 50 or 100 steps, where calls end anyway
_BLOCK_BYTES = 2**24

_alive: weakref.WeakSet[DataIterator] = weakref.WeakSet()


@atexit.register
def _stop_reading() -> None:
    """End the prefetching threads: at exit the interpreter would wait forever for one that runs Python code."""
    for data in list(_alive):
        with suppress(tf.errors.OpError):  # the process is ending
            data.stop_reading()


class DataIterator:
    """An endless stream of training batches with a position; made by `prototrain.data.positions.training_data`.

    The trainer calls `catch_up` before it reads `iterator`, `count` after it has trained, `start_next_pass` at the end
    of a pass, and `rewind` after a failed step. A checkpoint calls `write` and `read`.

    This class has the mode "restart": a resumed run starts a new pass. Each subclass keeps a position: it overrides
    `_open`, and `_write` and `_restore`, if the position is more than numbers.

    Attributes:
        number: index of the pass, from 0.
        offset: number of batches trained on in the pass; `total` of those in all passes.
        behind: number of batches to read again before the position.
        block: number of batches in a block; 0 if batches are read one by one.
    """

    mode: ClassVar[str] = "restart"  # how a resumed run returns to the position; or "iterator" or "replay"
    endless: ClassVar[bool] = False  # whether the iterator never ends; otherwise call `start_next_pass` at its end

    def __init__(self, source: Source, reason: str = "", *, batch_size: int = 1) -> None:
        self.share, self.reason = source.share, reason
        self._source, self._announce = source, source.announce
        self.iterator: Any = None
        self.number = self.offset = self.total = self.behind = 0
        self.block = self._row = 0
        self._current: Any = None  # the current block; `_row` is that of its next batch
        self._expected_digest: str | None = None  # the digest at the position, while batches are read again
        self._reads_ahead = False
        self.allow_changes = False  # whether a restore accepts data that has changed since the position was saved
        self.caveat: str | None = None  # why the last restored position is not exact
        length = int(source.training.cardinality())
        self.cardinality = length if length >= 0 else None  # None if unknown or infinite
        self.is_live_data = any(map(is_live, stages(source.training)))  # `first_batch` of live data is zeros
        if self.is_live_data:
            self.first_batch = batch_of_zeros(source.training.element_spec, batch_size)
        else:
            with announcing("waiting for the first batch of the training data", self._announce):
                self.first_batch = self._read_first_batch()
        self._seek(_START)
        self.datasets = source.datasets
        self.element_spec = source.training.element_spec
        described = describe_pipeline(source.training)
        if self.mode != "iterator":  # only an iterator's state contains file names
            del described["file names"]
        # These facts must be equal for a saved position to mean the same batches.
        self.fingerprint: dict[str, Any] = {
            "elements": {name: f"{spec!r}" for name, spec in sorted(self.element_spec.items())},
            "batches per pass": self.cardinality,
            "batch size": None if self.is_live_data else sorted(map(int, first_dimensions(self.first_batch).values())),
            "seed": source.seed,
            "mode": self.mode,
            "division": self.share.division,
            **described,
        }
        # Every run reads the first batch anyway, so comparing its digest detects changed data at no cost.
        self._first_digest = None if self.is_live_data or self.mode == "restart" else digest_of(self.first_batch)
        _alive.add(self)

    def require_batch_size(self, size: int, configured: int) -> None:
        """Raise a ConfigError unless batches have `size` examples, this worker's part of ``model.batch_size``.

        If the batch dimension is not static, the first batch is checked. It may be smaller if it is the only one.
        If the length is unknown, such as after `bucket_by_sequence_length`, a smaller batch is a warning.
        """
        sizes = {spec.shape[0] for spec in tf.nest.flatten(dict(self.element_spec)) if spec.shape.rank}
        is_static = None not in sizes
        sizes = sizes if is_static else set(self.fingerprint["batch size"] or [])
        if len(sizes) != 1 or sizes == {size}:  # batches of graphs, for example, have several
            return
        (found,) = sizes
        share = "" if size == configured else f" ({size} of them are read here)"
        message = (
            f"model.batch_size is {configured}{share}, and the batches of the dataset 'trn' have {found} examples; use "
            f".batch(model.batch_size) in datasets(), or set model.batch_size to {found}"
        )
        if is_static or found > size or self.cardinality not in (1, None):
            raise ConfigError(message)
        if self.cardinality is None:
            self._announce(f"WARNING: {message}")

    def describe(self) -> str:
        """Return the mode and its reason, such as "replay (2 shuffles)"."""
        return f"{self.mode} ({self.reason})" if self.reason else self.mode

    def next_batch(self) -> Batch:
        """Read and count one training batch; raises StopTraining at the end of the data."""
        self.catch_up()
        if self.block:
            batch = None if self.next_block() is None else self._batch_of_block(self._row)
        else:
            batch = next(iter(self.iterator), None)
        if batch is None:
            self.start_next_pass()
            return self.next_batch()
        self.count(1)
        return dict(batch)

    def count(self, batches: int, *, reads_ahead: bool = False) -> None:
        """Count batches that were trained on. With `reads_ahead`, more were read, for a failed step."""
        self.offset += batches
        self._row += batches if self.block else 0
        self.total += batches
        self._reads_ahead |= reads_ahead

    def start_next_pass(self) -> None:
        """Start the next pass over the data; raises StopTraining at the end of the data."""
        if self.offset == 0 or self.endless or self._source.is_single_pass:
            raise StopTraining("the training dataset ran out of data")
        self._seek({"pass": self.number + 1, "offset": 0})

    def stop_reading(self) -> None:
        """Stop prefetching; the iterator is empty afterwards."""
        if self.iterator is not None:
            nothing = self._source.training.take(0)
            nothing = nothing.batch(self.block) if self.block else nothing
            tf.raw_ops.MakeIterator(
                dataset=tf.data.experimental.to_variant(nothing), iterator=iterator_handle(self.iterator)
            )

    def _read_first_batch(self) -> Batch:
        """Return the first batch; moves the iterator."""
        if self.mode == "iterator":
            self._seek(_START)
            return run_interruptibly(lambda: first_batch(self.iterator))
        first = run_interruptibly(lambda: first_batch(self._source.training))
        if self._source.is_made_once:
            self._source.rebuild()
        return first

    def _seek(self, position: Position) -> None:
        """Move to a position, or before it; `catch_up` reads the batches in between when the run continues."""
        self.iterator = self._current = None  # the old iterator prefetches, and may lock a cache file
        dataset, passed = self._open(position)
        dataset = bounded(dataset)
        if self.endless and int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
            dataset = dataset.repeat()
        # The last block of a pass may be shorter.
        self.iterator = iter(dataset.batch(self.block).prefetch(1) if self.block else dataset.prefetch(PREFETCH))
        self.number, self.offset, self._expected_digest = position["pass"], position["offset"], position.get("digest")
        self.behind = self.offset - passed

    def _open(self, position: Position) -> tuple[tf.data.Dataset, int]:
        """Return a dataset that starts at a position or before it, and the number of batches of the pass before it."""
        return self._source.training_of(position["pass"]), 0

    def why_no_blocks(self) -> str | None:
        """Return why batches cannot be stacked into blocks, or None if they can."""
        for path, spec in by_path(self.element_spec).items():
            if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined() or spec.dtype == tf.string:
                return f"{path!r} is {spec}; XLA needs numbers of a fixed shape, try .batch(..., drop_remainder=True)"
        return "it is live" if self.is_live_data else None

    def use_blocks(self) -> None:
        """Read stacked batches with `next_block`, about 16 MB at a time; call this before training starts."""
        if (reason := self.why_no_blocks()) is not None:
            raise ConfigError(f'model.jit_compile: "loop" does not work with this training data: {reason}')
        size = sum(part.shape.num_elements() * part.dtype.size for part in tf.nest.flatten(dict(self.element_spec)))
        self.block = max(1, min(LONGEST_BLOCK, _BLOCK_BYTES // max(size, 1)))
        self._seek({"pass": self.number, "offset": 0})

    def next_block(self) -> tuple[Batch, int, int] | None:
        """Return stacked batches, the row of the next one, and the number of those left; None at the end of a pass."""
        if not self._rows_left:
            try:
                self._read_block()
            except tf.errors.OutOfRangeError:
                return None
        return self._current, self._row, self._rows_left

    @property
    def last_of_block(self) -> Batch:
        """The last batch trained on, if batches are read in blocks."""
        return self._batch_of_block(self._row - 1)

    def _batch_of_block(self, row: int) -> Batch:
        return dict(tf.nest.map_structure(lambda stacked: stacked[row], self._current))

    @property
    def _rows_left(self) -> int:
        return 0 if self._current is None else int(tf.nest.flatten(self._current)[0].shape[0]) - self._row

    def _read_block(self) -> None:
        self._current = None  # in case reading fails
        self._current, self._row = self.iterator.get_next(), 0

    def write(self, prefix: str) -> Callable[[], Position]:
        """Capture the position; returns a function that writes it as part of a checkpoint, from any thread."""
        about = {"fingerprint": self.fingerprint, "first batch": self._first_digest, "total": self.total}
        finish = self._write(prefix)
        return lambda: {**finish(), **about}

    def read(self, prefix: str, meta: Position) -> None:
        """Restore a saved position; raises a CheckpointError if the data has changed."""
        then, now = meta["fingerprint"], self.fingerprint
        # The chief saved the position, and other workers read other data.
        is_chiefs = self.share.is_divided and self.share.index > 0
        self.caveat, self._reads_ahead = None, False
        self.total = meta["total"]
        if then["division"] != now["division"]:
            changed = [f"{now['division'] or SAME_DATA}, and not as before ({then['division'] or SAME_DATA})"]
        elif (changed := self._changes(then, is_chiefs)) and not self.allow_changes:
            raise CheckpointError(
                f"the training data has changed: {'; '.join(changed)}; use {ALLOW_CHANGED_DATA} "
                f"to continue with a new pass, or {FRESH} to start again"
            )
        if changed or self.mode == "restart":
            why = f"has changed: {'; '.join(changed)}; a new pass begins" if changed else f"starts again: {self.reason}"
            self.caveat = f"the training data {why}"
            self._seek({"pass": meta["pass"] + 1, "offset": 0})
        elif is_chiefs:
            self._seek({"pass": meta["pass"], "offset": meta["offset"]})
        else:
            self._restore(prefix, meta)
            if meta["first batch"] != self._first_digest:
                self.caveat = OTHER_FIRST_BATCH
            elif then["file sizes"] != now["file sizes"]:
                self.caveat = OTHER_SIZES

    def _changes(self, then: Mapping[str, Any], is_chiefs: bool) -> list[str]:
        """Return a line for each change of the data since the position was saved."""
        now, keeps_place = self.fingerprint, self.mode != "restart"
        keys = ["elements", "seed", *(("batch size", "batches per pass", "mode") if keeps_place else ())]
        found = [f"{key} was {then[key]} and is {now[key]}" for key in keys if then[key] != now[key]]
        if keeps_place and not is_chiefs:
            if (difference := first_difference(then["stages"], now["stages"])) is not None:
                found.append(difference)
            elif then.get("file names") != now.get("file names"):
                found.append("its files have other names, or are in another directory")
        return found

    def rewind(self) -> None:
        """Return to the position after the last completed step, after a step that read a batch and failed.

        Reading the batches in between now, and not in `catch_up`, could fail at the record that made the step fail.
        """
        if self.mode != "restart":  # otherwise the batch of the failed step is lost
            self._seek(self._position())
        self._reads_ahead = False

    def _position(self) -> Position:
        return {"pass": self.number, "offset": self.offset}

    def _write(self, prefix: str) -> Callable[[], Position]:
        """Capture the position; returns a function that writes its files, and returns it."""
        position = self._position()
        return lambda: position

    def _restore(self, prefix: str, position: Position) -> None:
        """Restore a written position; raises a CheckpointError if it cannot be read."""
        self._seek(position)

    def catch_up(self, stop_requested: Callable[[], bool] = lambda: False) -> bool:
        """Read batches again up to the position of the run, if a restored iterator is behind it.

        Returns False if a stop was requested before the position was reached; raises a DataError if reading failed.
        """
        if self._reads_ahead:
            self.rewind()
        if not self.behind:
            return True
        position, begin, batches, caveat = self._position(), time.perf_counter(), 0, None
        # Only a dataset of Python code, built once for all passes, can depend on earlier passes.
        may_go_back = self.mode == "replay" and self.number > 0 and self._source.is_made_once
        with announcing("reading batches again up to the position", self._announce):
            for first_pass in (self.number, 0) if may_go_back else (self.number,):
                try:
                    for _ in self._read_again(position, first_pass):
                        if stop_requested():
                            self._seek_later(position)
                            return False
                        batches += self.block or 1
                    caveat = None if self._repeats() else OTHER_BATCHES
                except tf.errors.OutOfRangeError:
                    caveat = FEWER_BATCHES
                except tf.errors.OpError as error:
                    self._seek_later(position)
                    raise DataError(f"reading the training data again failed: {cause(error)}") from error
                if caveat is None:
                    break
        seconds = time.perf_counter() - begin
        self._announce(f"read {batches} batches again up to the position ({seconds:.1f} s)")
        if caveat is not None:
            self.caveat = caveat
            self._announce(f"WARNING: {caveat}; the batches from here on may differ from those of an uninterrupted run")
        if caveat == FEWER_BATCHES:
            self._seek({"pass": position["pass"] + 1, "offset": 0})
        return True

    def _read_again(self, position: Position, first_pass: int) -> Iterator[None]:
        """Read up to the position, after all passes since an earlier one; yields after each batch or block."""
        for number in range(first_pass, position["pass"]):
            self._seek({"pass": number, "offset": 0})
            for _ in self.iterator:
                yield
        if first_pass < position["pass"]:
            self._seek(position)
        while self.behind >= max(self.block, 1):
            self.iterator.get_next()
            self.behind -= self.block or 1
            yield
        if self.behind:  # the position is within the block
            self._read_block()
            self._row, self.behind = self.behind, 0

    def _seek_later(self, position: Position) -> None:
        """Set the position now, and move to it in `catch_up`: a stop must not wait for the data."""
        self.number, self.offset, self._expected_digest = position["pass"], position["offset"], position.get("digest")
        self.behind, self._reads_ahead = self.offset, True

    def _repeats(self) -> bool:
        """Return whether the batches that were read again are equal to those trained on."""
        return True


def bounded(dataset: Any) -> tf.data.Dataset:
    """Return a dataset without a last ``prefetch(tf.data.AUTOTUNE)``, also if an endless `repeat` follows it.

    TensorFlow lets its buffer grow up to half of the memory, and every checkpoint contains the buffer.
    """
    if stage_name(dataset) == "_Repeat" and stage_number(dataset, "count") == -1:
        (below,) = stage_inputs(dataset)
        inner = bounded(below)
        return dataset if inner is below else inner.repeat()
    is_unbounded = stage_name(dataset) == "_Prefetch" and stage_number(dataset, "buffer_size") == tf.data.AUTOTUNE
    return stage_inputs(dataset)[0] if is_unbounded else dataset
