"""The training data as a run goes through it: endless, with a position that can be saved and restored."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import tensorflow as tf

from prototrain.data.batches import by_path, digest_of, first_dimensions, made_up_batch
from prototrain.data.choice import choose_position
from prototrain.data.pipeline import describe_pipeline, first_difference, stages
from prototrain.data.positions import FEWER_BATCHES, IteratorPosition
from prototrain.data.reading_again import Reader
from prototrain.data.shares import Share
from prototrain.data.source import Source
from prototrain.errors import CheckpointError, ConfigError, StopTraining
from prototrain.readers import is_live
from prototrain.system.wording import ALLOW_CHANGED_DATA, FRESH
from prototrain.tf_private import iterator_handle

SAME_DATA = "each worker reads all the training data"
OTHER_FIRST_BATCH = (
    "the training data did not repeat: its first batch is another one (have its files changed, or does its code draw "
    "random numbers?)"
)
OTHER_SIZES = "files of the training data have other sizes than they had"

_alive: weakref.WeakSet[TrainingData] = weakref.WeakSet()


@atexit.register
def _stop_reading() -> None:
    """End the threads that read ahead: at its end the interpreter would wait forever for one in Python code."""
    for data in list(_alive):
        with suppress(tf.errors.OpError):  # at the end of the process
            data.stop_reading()


class TrainingData:
    """An endless stream of training batches with a position.

    Args:
        make: a model's `datasets`; called again for each pass where the position has to be replayed.
        seed: the run's seed, for datasets without a seed.
        announce: called with a line of text that the user should know.
        batch_size: the number of examples in the batch of zeros that stands for the first one of live data.
        repeat: whether a finite dataset is repeated; otherwise that is the end of the training, and a
            resumed run reads it from its start.
        share: the worker that reads.
        data_position: ``trainer.data_position``.
        clock: returns the time in seconds.

    Attributes:
        share: as it was given.
        total: how many batches were trained on in all passes.
        datasets: everything that `make` returned, by name.
        element_spec: of a training batch.
        first_batch: of the training data; of zeros if that is live, as `is_made_up` says.
        reason: why the mode is not "iterator".
        caveat: why the place that was restored last is not the exact one, or None.
        allow_changes: whether a restore accepts other data than was saved.
        cardinality: batches of one pass, or None if it is not known or endless.
        fingerprint: what must be the same for a saved position to mean the same batches.

    Raises:
        DataError: the dataset is empty, or its elements are not dicts of tensors.
    """

    def __init__(
        self,
        make: Callable[[], dict[str, tf.data.Dataset]],
        *,
        seed: int,
        announce: Callable[[str], None] = print,
        batch_size: int = 1,
        repeat: bool = True,
        share: Share = Share(),  # noqa: B008 - it is frozen
        data_position: str = "auto",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.share = share
        self.total = 0
        self._announce = announce
        self._clock = clock
        self._source = Source(make, seed, announce)
        self.allow_changes = False
        self._reads_ahead = False
        self.caveat: str | None = None
        training = self._source.training
        length = int(training.cardinality())
        self.cardinality = length if length >= 0 else None
        self._is_single_pass = not repeat and length != tf.data.INFINITE_CARDINALITY
        self.is_made_up = any(map(is_live, stages(training)))
        made_up = made_up_batch(training.element_spec, batch_size) if self.is_made_up else None
        self._position, self.reason, self.first_batch = choose_position(
            self._source, announce, is_single_pass=self._is_single_pass, wanted=data_position, made_up=made_up
        )
        # Which every run reads, so that it costs nothing to find that what the data is made of has changed.
        self._first = digest_of(self.first_batch) if made_up is None and self.mode != "restart" else None
        self.datasets = self._source.datasets
        self.element_spec = self._source.training.element_spec
        self.fingerprint = {
            "elements": {name: f"{spec!r}" for name, spec in sorted(self.element_spec.items())},
            "batches per pass": self.cardinality,
            "batch size": None if self.is_made_up else sorted(map(int, first_dimensions(self.first_batch).values())),
            "seed": seed,
            "mode": self.mode,
            **describe_pipeline(self._source.training),
            **({"division": share.division} if share.is_own else {}),
        }
        _alive.add(self)

    def require_batch_size(self, size: int, configured: int) -> None:
        """Check that batches have as many examples as the config says.

        If the dimension is not static, the first batch tells; what may be a short batch is only mentioned.

        Args:
            size: of a batch that is read here.
            configured: ``model.batch_size``.

        Raises:
            ConfigError: they have not.
        """
        sizes = {spec.shape[0] for spec in tf.nest.flatten(dict(self.element_spec)) if spec.shape.rank}
        is_static = None not in sizes
        if not is_static:
            sizes = set() if self.is_made_up else set(map(int, first_dimensions(self.first_batch).values()))
        is_all = self.cardinality == 1 and max(sizes, default=0) < size  # the only batch there is
        if not sizes or size in sizes or (not is_static and (len(sizes) > 1 or is_all)):
            return
        if len(sizes) > 1:
            self._announce(
                f"WARNING: nothing in a batch of the dataset 'trn' has model.batch_size ({size}) rows; if these are "
                "single examples, add .batch(model.batch_size)"
            )
            return
        (found,) = sizes
        share = "" if size == configured else f" ({size} of them are read here)"
        said = (
            f"model.batch_size is {configured}{share}, and the batches of the dataset 'trn' have {found} examples; "
            "use .batch(model.batch_size) in datasets(), or set it to what they have"
        )
        if is_static or found > size or self.cardinality is not None:
            raise ConfigError(said)
        self._announce(f"WARNING: {said}")

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def iterator(self) -> Any:
        """What batches are read from; another object after a restore or a new pass."""
        return self._position.iterator

    @property
    def endless(self) -> bool:
        """Whether the iterator itself never ends; otherwise `start_next_pass` follows each end."""
        return self._position.endless

    @property
    def offset(self) -> int:
        """How many batches of the present pass have been trained on."""
        return self._position.offset

    @property
    def mode(self) -> str:
        """How a resume returns to the position: "iterator", "replay" or "restart"."""
        return self._position.mode

    def catch_up(self, stop_requested: Callable[[], bool] = lambda: False) -> bool:
        """Read on to right behind the last batch that was trained on, where a restored position lies before it.

        Args:
            stop_requested: asked now and then whether to leave off.

        Returns:
            whether that place was reached.

        Raises:
            DataError: the data cannot be read; the position is as it was saved.
        """
        self._settle()
        if not self._position.behind:
            return True
        reader = Reader(self._position, stop_requested, self._announce, self._clock)
        caveat = reader.read()
        if reader.is_stopped:
            return False
        if caveat is not None:
            self.caveat = caveat
            self._announce(f"WARNING: {caveat}; the batches from here on may differ from those of an uninterrupted run")
        if caveat == FEWER_BATCHES:
            self._position.begin(self._position.number + 1)
        return caveat != FEWER_BATCHES

    def fits_blocks(self) -> str | None:
        """Why the batches cannot be stacked to blocks: they differ in shape, are no dense numbers, or are live."""
        for path, spec in by_path(self.element_spec).items():
            is_plain = isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() and spec.dtype != tf.string
            if not is_plain:
                return (
                    f"{path!r} is {spec}, and not of numbers with one shape; .batch(..., drop_remainder=True) may help"
                )
        return "it is live" if self.is_made_up else None

    def use_blocks(self, size: int) -> None:
        """Read so many batches at a time, stacked, see `next_block`; before the first one is trained on.

        Raises:
            ConfigError: they cannot be stacked.
        """
        if (reason := self.fits_blocks()) is not None:
            raise ConfigError(f'model.jit_compile: "loop" does not work with this training data: {reason}')
        self._position.use_blocks(size)

    @property
    def block(self) -> int:
        """How many batches are read at a time; 0 for single ones."""
        return self._position.block

    def next_block(self) -> tuple[dict[str, Any], int, int] | None:
        """The block that the next batch is in.

        Returns:
            the stacked batches, the row of the next one, and how many are left; or None at the end of the pass.
        """
        position = self._position
        if not position.rows:
            try:
                position.read_block()
            except tf.errors.OutOfRangeError:
                return None
        return position.current, position.row, position.rows

    @property
    def last_of_block(self) -> dict[str, Any]:
        """The batch that was trained on last, where batches are read in blocks."""
        return self._position.row_of_block(self._position.row - 1)

    def next_batch(self) -> dict[str, Any]:
        """Read one batch, for training on it.

        Raises:
            StopTraining: there is no more data.
        """
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

    def describe(self) -> str:
        """The mode and its reason, such as "replay (2 shuffles)"."""
        return f"{self.mode} ({self.reason})" if self.reason else self.mode

    def count(self, batches: int, *, reads_ahead: bool = False) -> None:
        """Take note that so many batches were read from the iterator and trained on.

        Args:
            batches: how many.
            reads_ahead: whether more than these have been read, for a step that failed.
        """
        self._position.offset += batches
        self._position.row += batches if self.block else 0
        self.total += batches
        self._reads_ahead |= reads_ahead

    def _settle(self) -> None:
        """Bring the iterator back to the last batch that was trained on, if a failed step has read on."""
        if self._reads_ahead:
            self.rewind()

    def start_next_pass(self) -> None:
        """Start the next pass over the data, under its seed.

        Raises:
            StopTraining: the pass that ended had no batch, or is the only one: there is no more data.
        """
        if self.offset == 0 or self.endless or self._is_single_pass:
            raise StopTraining("the training dataset ran out of data")
        self._position.begin(self._position.number + 1)

    def stop_reading(self) -> None:
        """End reading ahead; the iterator has no more batches."""
        if self.iterator is not None:
            nothing = self._source.training.take(0)
            nothing = nothing.batch(self.block) if self.block else nothing
            tf.raw_ops.MakeIterator(
                dataset=tf.data.experimental.to_variant(nothing), iterator=iterator_handle(self.iterator)
            )

    # -- saving and restoring -----------------------------------------------------------------------------------------

    def write(self, prefix: str) -> Callable[[], dict[str, Any]]:
        """Hold on to the position; returns a function that writes it, as a part of a checkpoint."""
        self._settle()
        about = {
            "mode": self.mode,
            "fingerprint": self.fingerprint,
            "first batch": self._first,
            "total": self.total,
        }
        finish = self._position.write(prefix)
        return lambda: {**finish(), **about}

    def read(self, prefix: str, meta: dict[str, Any]) -> None:
        """Go to a saved position.

        Raises:
            CheckpointError: the data is not what the position was saved of, or it cannot be read.
        """
        position, fingerprint = self._position, meta["fingerprint"]
        place = [meta[key] for key in ("pass", "offset", "behind")]
        if not all(type(value) is int and 0 <= value < 2**31 for value in place):
            raise CheckpointError(f"the data position {prefix} is of pass, batch, distance {place}: no run writes that")
        number, offset, _ = place
        self.caveat, self._reads_ahead = None, False
        then, now = fingerprint.get("division"), self.share.division
        if then != now:
            changed = [f"{now or SAME_DATA}, and not as before ({then or SAME_DATA})"]
        elif (changed := self._changes(fingerprint)) and not self.allow_changes:
            raise CheckpointError(
                f"the training data has changed: {'; '.join(changed)}; use {ALLOW_CHANGED_DATA} "
                f"to continue with a new pass, or {FRESH} to start again"
            )
        if changed:
            self.caveat = f"the training data has changed: {'; '.join(changed)}; a new pass begins"
            position.begin(number + 1)
        elif self._is_chiefs and self.mode != "restart":
            position.replay(number, offset)
        else:
            self.caveat = position.read(prefix, meta)
            if self.caveat is None and None not in (meta.get("first batch"), self._first):
                self.caveat = None if meta["first batch"] == self._first else OTHER_FIRST_BATCH
            if self.caveat is None and fingerprint.get("file sizes") != self.fingerprint["file sizes"]:
                self.caveat = OTHER_SIZES
        self.total = meta.get("total", offset)

    def rewind(self) -> None:
        """Go back to before the last batch that was trained on, after a step that read one and failed.

        The batches in between are read by `catch_up`, when the run continues: reading them now could meet the record
        that made the step fail.
        """
        self._position.rewind()
        self._reads_ahead = False

    @property
    def _is_chiefs(self) -> bool:
        """Whether a saved position is that of the chief in its own share of the data, and not of this worker."""
        return self.share.is_own and self.share.index > 0

    def _changes(self, then: Mapping[str, Any]) -> list[str]:
        """In words, what of the data is not as it was when a position was saved."""
        now, keeps_place = self.fingerprint, self.mode != "restart"
        keys = ["elements", "seed", *(("batch size", "batches per pass", "mode") if keeps_place else ())]
        found = [f"{key} was {then.get(key)} and is {now[key]}" for key in keys if then.get(key) != now[key]]
        if not keeps_place or self._is_chiefs:
            return found
        if (difference := first_difference(then.get("stages", []), now["stages"])) is not None:
            found.append(difference)
        elif then.get("file names") != now["file names"]:
            found.append("the names of its files are not what they were")
        elif then.get("directory") != now["directory"] and isinstance(self._position, IteratorPosition):
            # The state of an interleave has the names of the files that it reads.
            found.append(f"its files are in {now['directory']}, and the saved position reads {then['directory']}")
        return found
