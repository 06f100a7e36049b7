"""The training data of a run: an endless stream of batches with a position to save and restore."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import tensorflow as tf

from prototrain.data.batches import Batch, Datasets, by_path, digest_of, first_batch, first_dimensions, made_up_batch
from prototrain.data.grain import GrainPosition, grain_of
from prototrain.data.pipeline import describe_pipeline, first_difference, stages
from prototrain.data.positions import (
    NOT_SAVABLE,
    IteratorPosition,
    NumberPosition,
    Position,
    ReplayPosition,
    RestartPosition,
    indexed,
)
from prototrain.data.rule import data_position, is_file_cache, reshuffles, shares_generators
from prototrain.data.source import Share, Source
from prototrain.errors import CheckpointError, ConfigError, DataError, StopTraining
from prototrain.readers.flows import is_live
from prototrain.system.signals import interruptibly
from prototrain.system.terminal import ALLOW_CHANGED_DATA, FRESH, announcing
from prototrain.system.tracebacks import cause
from prototrain.tf_private import iterator_handle

SAME_DATA = "each worker reads all the training data"
OTHER_FIRST_BATCH = (
    "the training data did not repeat: its first batch is another one (have its files changed, or does its code draw "
    "random numbers?)"
)
OTHER_SIZES = "files of the training data have other sizes than they had"
FEWER_BATCHES = "the training data did not repeat: reading it again gave fewer batches"

LONGEST_BLOCK = 128  # batches
_BLOCK_BYTES = 2**24

_alive: weakref.WeakSet[DataIterator] = weakref.WeakSet()


@atexit.register
def _stop_reading() -> None:
    """End the prefetching threads: at exit the interpreter would wait forever for one that runs Python code."""
    for data in list(_alive):
        with suppress(tf.errors.OpError):  # the process is ending
            data.stop_reading()


class DataIterator:
    """An endless stream of training batches with a position.

    Args:
        make: the `datasets` function of a model; called again for each pass if the data depends on the pass.
        seed: seed of the run, for datasets without a seed.
        announce: function that prints a line for the user.
        batch_size: size of the batch of zeros that is the first batch of live data.
        repeat: whether to repeat a finite dataset; otherwise training ends with it.
        share: the worker that reads the data.
        data_position: ``trainer.data_position``.

    Attributes:
        total: number of batches trained on in all passes.
        datasets: the datasets that `make` returned, by name.
        element_spec: spec of a training batch.
        first_batch: first batch of the training data; zeros if the data is live.
        is_made_up: whether the data is live, so that `first_batch` is zeros.
        reason: why the mode is not "iterator".
        caveat: why the last restored position is not exact, or None.
        allow_changes: whether a restore accepts data that has changed since the position was saved.
        cardinality: number of batches in a pass, or None if unknown or infinite.
        fingerprint: facts that must be equal for a saved position to mean the same batches.
    """

    def __init__(
        self,
        make: Callable[[], Datasets],
        *,
        seed: int,
        announce: Callable[[str], None] = print,
        batch_size: int = 1,
        repeat: bool = True,
        share: Share = Share(),  # noqa: B008 - it is frozen
        data_position: str = "auto",
    ) -> None:
        self.share = share
        self.total = 0
        self.allow_changes = False
        self.caveat: str | None = None
        self._announce = announce
        self._reads_ahead = False
        self._source = Source(make, seed, announce)
        training = self._source.training
        length = int(training.cardinality())
        self.cardinality = length if length >= 0 else None
        self._is_single_pass = not repeat and length != tf.data.INFINITE_CARDINALITY
        self.is_made_up = any(map(is_live, stages(training)))
        made_up = made_up_batch(training.element_spec, batch_size) if self.is_made_up else None
        self._position, self.reason, self.first_batch = self._choose_position(data_position, made_up)
        self.datasets = self._source.datasets
        self.element_spec = self._source.training.element_spec
        described = describe_pipeline(self._source.training)
        if not isinstance(self._position, IteratorPosition):  # only an iterator's state contains file names
            del described["file names"]
        self.fingerprint: dict[str, Any] = {
            "elements": {name: f"{spec!r}" for name, spec in sorted(self.element_spec.items())},
            "batches per pass": self.cardinality,
            "batch size": None if self.is_made_up else sorted(map(int, first_dimensions(self.first_batch).values())),
            "seed": seed,
            "mode": self.mode,
            "division": share.division,
            **described,
        }
        # Every run reads the first batch anyway, so comparing its digest detects changed data at no cost.
        self._first = None if self.is_made_up or self.mode == "restart" else digest_of(self.first_batch)
        _alive.add(self)

    def _choose_position(self, wanted: str, made_up: Batch | None) -> tuple[Position, str, Batch]:
        """Return the position, the reason if its mode is not "iterator", and the first batch.

        The first batch is `made_up`, or is read if that is None.
        """
        source, looked_at = self._source, self._source.training

        def first_of(look: Callable[[], Batch]) -> Batch:
            if made_up is not None:
                return made_up
            with announcing("waiting for the first batch of the training data", self._announce):
                return interruptibly(look)

        position: Position | None = None
        mode, reason = data_position(looked_at, wanted)
        if self._is_single_pass:
            mode, reason = "restart", "each run reads it from its start to its end"
        elif wanted in ("auto", "iterator"):
            if (grain := grain_of(looked_at)) is not None:
                position = GrainPosition(source, grain)
            elif indexed(looked_at) is not None:
                dataset = source.training_of(0)  # used only here: each iteration has a new order
                if indexed(dataset) is not None and not shares_generators(looked_at, dataset):
                    position = NumberPosition(source, dataset)
        if position is None and mode == "iterator":
            try:
                if any(map(is_file_cache, stages(looked_at))):
                    raise DataError('trainer.data_position cannot be "iterator": the data is cached in a file')
                position = IteratorPosition(source, self._announce, reshuffles=reshuffles(looked_at))
            except NOT_SAVABLE as error:
                reason = f"TensorFlow cannot save its iterator: {cause(error)}"
                if wanted == "iterator":
                    raise DataError(f"trainer.data_position: {reason}") from error
                mode = "replay"
        if position is not None:
            return position, "", first_of(position.look)
        first = first_of(lambda: first_batch(looked_at))
        source.rebuild()
        if mode == "replay" and shares_generators(source.training, looked_at):
            mode, reason = "restart", "it has a shuffle that was made outside of datasets()"
        return (RestartPosition if mode == "restart" else ReplayPosition)(source), reason, first

    def require_batch_size(self, size: int, configured: int) -> None:
        """Check that batches have `size` examples, this worker's part of ``model.batch_size``.

        If the dimension is not static, the size of the first batch counts. If that may be a short batch, this only
        prints a warning.

        Args:
            size: expected number of examples in a batch.
            configured: ``model.batch_size``.

        Raises:
            ConfigError: the batches have another size.
        """
        sizes = {spec.shape[0] for spec in tf.nest.flatten(dict(self.element_spec)) if spec.shape.rank}
        is_static = None not in sizes
        if not is_static:
            sizes = set(self.fingerprint["batch size"] or [])
            if len(sizes) > 1 or (self.cardinality == 1 and max(sizes, default=0) < size):
                return  # batches of graphs, for example, or a single short batch
        if not sizes or size in sizes:
            return
        share = "" if size == configured else f" ({size} of them are read here)"
        message = (
            f"model.batch_size is {configured}{share}, and the batches of the dataset 'trn' have "
            f"{' or '.join(map(str, sorted(sizes)))} examples; use .batch(model.batch_size) in datasets(), or set it "
            "to what they have"
        )
        if len(sizes) == 1 and (is_static or max(sizes) > size or self.cardinality is not None):
            raise ConfigError(message)
        self._announce(f"WARNING: {message}")

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def iterator(self) -> Any:
        """The iterator over batches; replaced by a restore or a new pass."""
        return self._position.iterator

    @property
    def endless(self) -> bool:
        """Whether the iterator never ends; otherwise call `start_next_pass` at its end."""
        return self._position.endless

    @property
    def offset(self) -> int:
        """The number of batches trained on in the current pass."""
        return self._position.offset

    @property
    def mode(self) -> str:
        """How a resumed run returns to the position: "iterator", "replay" or "restart"."""
        return self._position.mode

    def describe(self) -> str:
        """Return the mode and its reason, such as "replay (2 shuffles)"."""
        return f"{self.mode} ({self.reason})" if self.reason else self.mode

    def next_batch(self) -> Batch:
        """Read and count one training batch; raises StopTraining at the end of the data."""
        self.catch_up()
        if self.block:
            batch = None if self.next_block() is None else self._position.row_of_block(self._position.row)
        else:
            batch = next(iter(self.iterator), None)
        if batch is None:
            self.start_next_pass()
            return self.next_batch()
        self.count(1)
        return dict(batch)

    def count(self, batches: int, *, reads_ahead: bool = False) -> None:
        """Count batches that were trained on.

        Args:
            batches: number of batches.
            reads_ahead: whether more batches were read, for a failed step.
        """
        self._position.offset += batches
        self._position.row += batches if self.block else 0
        self.total += batches
        self._reads_ahead |= reads_ahead

    def start_next_pass(self) -> None:
        """Start the next pass over the data; raises StopTraining at the end of the data."""
        if self.offset == 0 or self.endless or self._is_single_pass:
            raise StopTraining("the training dataset ran out of data")
        self._position.begin(self._position.number + 1)

    def stop_reading(self) -> None:
        """Stop prefetching; the iterator is empty afterwards."""
        if self.iterator is not None:
            nothing = self._source.training.take(0)
            nothing = nothing.batch(self.block) if self.block else nothing
            tf.raw_ops.MakeIterator(
                dataset=tf.data.experimental.to_variant(nothing), iterator=iterator_handle(self.iterator)
            )

    # -- blocks -------------------------------------------------------------------------------------------------------

    def fits_blocks(self) -> str | None:
        """Return why batches cannot be stacked into blocks, or None if they can.

        Blocks need dense numeric tensors of fixed shapes, and data that is not live.
        """
        for path, spec in by_path(self.element_spec).items():
            if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined() or spec.dtype == tf.string:
                return (
                    f"{path!r} is {spec}, and not of numbers with one shape; .batch(..., drop_remainder=True) may help"
                )
        return "it is live" if self.is_made_up else None

    def use_blocks(self) -> None:
        """Read stacked batches with `next_block`, about 16 MB at a time; call this before training starts."""
        if (reason := self.fits_blocks()) is not None:
            raise ConfigError(f'model.jit_compile: "loop" does not work with this training data: {reason}')
        size = sum(part.shape.num_elements() * part.dtype.size for part in tf.nest.flatten(dict(self.element_spec)))
        self._position.block = max(1, min(LONGEST_BLOCK, _BLOCK_BYTES // max(size, 1)))
        self._position.begin(self._position.number)

    @property
    def block(self) -> int:
        """The number of batches in a block; 0 if batches are read one by one."""
        return self._position.block

    def next_block(self) -> tuple[Batch, int, int] | None:
        """Return the block with the next batch, or None at the end of the pass.

        Returns:
            the stacked batches, the row of the next batch, and the number of batches left in the block.
        """
        position = self._position
        if not position.rows:
            try:
                position.read_block()
            except tf.errors.OutOfRangeError:
                return None
        return position.current, position.row, position.rows

    @property
    def last_of_block(self) -> Batch:
        """The last batch trained on, if batches are read in blocks."""
        return self._position.row_of_block(self._position.row - 1)

    # -- the position -------------------------------------------------------------------------------------------------

    def write(self, prefix: str) -> Callable[[], dict[str, Any]]:
        """Capture the position; returns a function that writes it as part of a checkpoint."""
        if self._reads_ahead:
            self.rewind()
        about = {"fingerprint": self.fingerprint, "first batch": self._first, "total": self.total}
        finish = self._position.write(prefix)
        return lambda: {**finish(), **about}

    def read(self, prefix: str, meta: dict[str, Any]) -> None:
        """Restore a saved position; raises a CheckpointError if the data has changed."""
        position, then, now = self._position, meta["fingerprint"], self.fingerprint
        # The chief saved the position, and other workers read other data.
        is_chiefs = self.share.is_own and self.share.index > 0
        self.caveat, self._reads_ahead = None, False
        self.total = meta["total"]
        if then["division"] != now["division"]:
            changed = [f"{now['division'] or SAME_DATA}, and not as before ({then['division'] or SAME_DATA})"]
        elif (changed := self._changes(then, is_chiefs)) and not self.allow_changes:
            raise CheckpointError(
                f"the training data has changed: {'; '.join(changed)}; use {ALLOW_CHANGED_DATA} "
                f"to continue with a new pass, or {FRESH} to start again"
            )
        if changed:
            self.caveat = f"the training data has changed: {'; '.join(changed)}; a new pass begins"
            position.begin(meta["pass"] + 1)
        elif is_chiefs and self.mode != "restart":
            position.replay(meta)
        else:
            position.read(prefix, meta)
            if self.mode == "restart":
                self.caveat = f"the training data starts again: {self.reason}"
            elif meta["first batch"] != self._first:
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

        `catch_up` reads the batches in between when the run continues. Reading them now could fail at the record that
        made the step fail.
        """
        self._position.rewind()
        self._reads_ahead = False

    def catch_up(self, stop_requested: Callable[[], bool] = lambda: False) -> bool:
        """Read batches again up to the position of the run, if a restored iterator is behind it.

        Args:
            stop_requested: returns whether a stop was requested.

        Returns:
            False if a stop was requested before the position was reached.

        Raises:
            DataError: reading failed.
        """
        if self._reads_ahead:
            self.rewind()
        position, begin, batches = self._position, time.perf_counter(), 0
        caveat: str | None = None
        if not position.behind:
            return True
        with announcing("reading batches again to get to the place of the run", self._announce):
            while caveat is None and (position.behind or position.passes_behind):
                if stop_requested():
                    return False
                try:
                    position.read_again()
                    batches += position.block or 1
                    caveat = None if position.behind or position.passes_behind else position.difference()
                except tf.errors.OutOfRangeError:
                    if position.passes_behind:
                        position.begin_behind(position.number - position.passes_behind + 1)
                    else:
                        caveat = FEWER_BATCHES
                except tf.errors.OpError as error:
                    position.rewind()
                    raise DataError(f"reading the training data again failed: {cause(error)}") from error
                if caveat is not None and position.goes_further_back():
                    caveat = None
        seconds = time.perf_counter() - begin
        self._announce(f"read {batches} batches again to get to the place of the run ({seconds:.1f} s)")
        if caveat is not None:
            self.caveat = caveat
            self._announce(f"WARNING: {caveat}; the batches from here on may differ from those of an uninterrupted run")
        if caveat == FEWER_BATCHES:
            position.begin(position.number + 1)
        return True
