"""The training data as a run goes through it: endless, with a position that can be saved and restored.

How exactly the position is restored depends on the dataset and is found out once, at the start:

- ``iterator``: TensorFlow can save the iterator. Exact.
- ``replay``: it cannot (`from_generator`, `py_function`, stateful ops in `map`) or may not (`cache(filename)`, datasets
  as elements), but building the dataset again under the same seed gives the same batches. Each pass over the data gets
  its own seed, and a resume reads from the start of the pass up to its place. Exact.
- ``restart``: building it again gives other batches. A resume starts a new pass, which is not exact.
"""

from __future__ import annotations

import atexit
import hashlib
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.checkpoint import READ_ERRORS, first_line
from prototrain.data.elements import check_dataset, first_batch, same_batch
from prototrain.data.iterator_state import (
    Place,
    Saved,
    StateFiles,
    read_state,
    shuffles,
    start_state,
    take_state,
    why_not_saved,
    write_state,
)
from prototrain.data.pipeline import (
    count_shuffles,
    describe_pipeline,
    file_caches,
    first_difference,
    gives_the_same_again,
    prefetched,
    unseeded,
)
from prototrain.errors import CheckpointError, DataError, StopTraining

PREFETCH = 2
CATCH_UP_BATCHES = 20
LARGE_STATE = 100 * 2**20
STATE_SHARE = 0.01  # of a run's time, for taking the iterator's state

_alive: weakref.WeakSet[TrainingData] = weakref.WeakSet()


@atexit.register
def _stop_reading() -> None:
    """End the threads that read ahead: one that is in Python code when the interpreter ends would never come back from
    there, and the process would wait for it for ever."""
    for data in list(_alive):
        with suppress(tf.errors.OpError):  # there is nobody left to tell
            data.stop_reading()


class TrainingData:
    """An endless stream of training batches with a position.

    Args:
        make: a model's `datasets`; called again for each pass where the position has to be replayed.
        seed: the run's seed, which a dataset without one of its own gets.
        announce: called with a line of text that the user should know.
        repeat: whether a dataset with an end begins anew there; otherwise that is the end of the training, and a
            resumed run reads it from its start.
        clock: returns the time in seconds.

    Attributes:
        iterator: what batches are read from; another object after a restore or a new pass.
        mode: "iterator", "replay" or "restart".
        reason: why the mode is not "iterator".
        caveat: why the place that was restored last is not the exact one, or None.
        cardinality: batches of one pass, or None if it is not known or endless.
        offset: how many batches of the present pass have been trained on.

    Raises:
        DataError: the dataset is empty, or its elements are not dicts of tensors.
    """

    def __init__(
        self,
        make: Callable[[], dict[str, tf.data.Dataset]],
        *,
        seed: int,
        announce: Callable[[str], None] = print,
        repeat: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make = make
        self._seed = seed
        self._announce = announce
        self._clock = clock
        self._pass = 0
        self.offset = 0
        self._behind = 0
        self.allow_changes = False
        self.caveat: str | None = None
        self.datasets = self._build(0)
        self._dataset = self.datasets["trn"]
        self.element_spec = self._dataset.element_spec
        self._pipeline = describe_pipeline(self._dataset)
        length = int(self._dataset.cardinality())
        self.cardinality = length if length >= 0 else None
        self._is_single_pass = not repeat and length != tf.data.INFINITE_CARDINALITY
        self._memory = f"ram://prototrain/{uuid.uuid4().hex}"
        weakref.finalize(self, _forget, self._memory)
        # Where the iterator was saved last: a failed step goes back to it.
        self._origin = Saved(f"{self._memory}/start", Place(), 0.0)
        self._written: dict[int, Saved] = {}  # by offset: what `saved_at` has not heard of yet
        self._shuffles: set[bytes] = set()  # those that a state must hold
        self._begins_late = False  # whether some shuffle begins later than its iterator
        self._rereads = gives_the_same_again(self._dataset) and not unseeded(self._dataset)
        self.mode, self.reason = "iterator", ""
        self._file_caches = file_caches(self._dataset)
        self._caches_to_make = [name for name in self._file_caches if not Path(f"{name}.index").exists()]
        self.first_batch, start = self._find_mode()
        self._begin(0, self._fresh(0), start)
        _alive.add(self)

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def endless(self) -> bool:
        """Whether the iterator itself never ends; otherwise `start_next_pass` follows each end."""
        return self.mode == "iterator"

    def catch_up(self, stop_requested: Callable[[], bool] = lambda: False) -> bool:
        """Read on to right behind the last batch that was trained on, where a restored position lies before it.

        Args:
            stop_requested: asked now and then whether to leave off.

        Returns:
            whether that place was reached.
        """
        if not self._behind:
            return True
        begin, behind = self._clock(), self._behind
        while self._behind and not stop_requested():
            batches = min(self._behind, CATCH_UP_BATCHES)
            _advance(self.iterator, tf.constant(batches))
            self._behind -= batches
        read, seconds = behind - self._behind, self._clock() - begin
        self._announce(f"read {read} batches again to get to the place of the run ({seconds:.1f} s)")
        return not self._behind

    def next_batch(self) -> dict[str, Any]:
        """Read one batch, for training on it.

        Raises:
            StopTraining: there is no more data.
        """
        self.catch_up()
        for batch in self.iterator:
            self.count(1)
            return dict(batch)
        self.start_next_pass()
        return self.next_batch()

    def describe(self) -> str:
        """What becomes of the position on a resume, in words."""
        exact = {"iterator": "exact", "replay": "exact, by reading again", "restart": "not exact"}[self.mode]
        return f"{self.mode} ({exact}{'; ' + self.reason if self.reason else ''})"

    def count(self, batches: int) -> None:
        """Take note that so many batches were read from the iterator and trained on."""
        self.offset += batches

    def start_next_pass(self) -> None:
        """Begin the data anew, under the next pass's seed.

        Raises:
            StopTraining: the pass that ended had no batch, or is the only one: there is no more data.
        """
        if self.offset == 0 or self.endless or self._is_single_pass:
            raise StopTraining("the training dataset ran out of data")
        self._begin(self._pass + 1, self._build(self._pass + 1)["trn"])

    def stop_reading(self) -> None:
        """End reading ahead; the iterator has no more batches."""
        if self.iterator is not None:
            nothing = self._dataset.take(0)
            tf.raw_ops.MakeIterator(dataset=nothing._variant_tensor, iterator=self.iterator._iterator_resource)

    # -- saving and restoring -----------------------------------------------------------------------------------------

    def write(self, prefix: str) -> Callable[[], dict[str, Any]]:
        """Hold on to the position; returns a function that writes it, as a part of a checkpoint.

        Taking an iterator's state can take longer than many steps. Where saves come so often that it would be a
        noticeable part of the time, the newest checkpoint's state serves again, with more batches to be read behind it.
        So it does where the new state is not whole.
        """
        place, origin = Place(self.offset, self._behind), self._origin
        about = {"mode": self.mode, "pass": self._pass, "fingerprint": self.fingerprint()}
        if self.mode != "iterator":
            return lambda: {**place._asdict(), **about}
        files = self._origin_files() if self._rereads else None
        begin, end, state = self._clock(), 0.0, None
        if files is None or begin - origin.taken_at > origin.took / STATE_SHARE:
            state = take_state(self.iterator)
            end = self._clock()

        def finish() -> dict[str, Any]:
            saved = None
            if state is not None:
                self._write_new(state, prefix)
                is_whole = self._is_whole(prefix)
                if is_whole or files is None:
                    saved = Saved(prefix, place, end, end - begin, is_whole)
            if files is not None and saved is None:
                files.copy(prefix)
                saved = origin._replace(place=Place(place.offset, place.offset - origin.place.position))
            assert saved is not None
            self._written[place.offset] = saved
            return {**saved.place._asdict(), "whole": saved.is_whole, **about}

        return finish

    def _origin_files(self) -> StateFiles | None:
        try:
            return StateFiles(self._origin.prefix)
        except OSError:  # somebody has deleted that checkpoint
            return None

    def _is_whole(self, prefix: str) -> bool:
        found = shuffles(prefix)
        self._shuffles |= found
        return found == self._shuffles

    def _write_new(self, state: tf.Tensor, prefix: str) -> None:
        write_state(prefix, state)
        size = sum(path.stat().st_size for path in Path(prefix).parent.glob(Path(prefix).name + ".*"))
        if size > LARGE_STATE:
            self._announce(
                f"WARNING: the data position takes {size / 2**20:.0f} MB in each checkpoint, the content of "
                "the dataset's buffers; shuffle before decoding or batching to make it small"
            )

    def read(self, prefix: str, meta: dict[str, Any]) -> None:
        """Go to a saved position.

        Raises:
            CheckpointError: the data is not what the position was saved of, or it cannot be read.
        """
        changed = self._changes(meta)
        self.caveat = None
        if changed and not self.allow_changes:
            raise CheckpointError(
                f"the training data has changed: {'; '.join(changed)}; "
                "use --allow-changed-data to go on with it from a new pass, or --fresh to start anew"
            )
        number, offset, behind = place = [meta[key] for key in ("pass", "offset", "behind")]
        if not all(type(value) is int and 0 <= value < 2**31 for value in place):
            raise CheckpointError(f"the data position {prefix} is of pass, batch, distance {place}: no run writes that")
        gone = self._caches_to_make if number else []  # the first pass makes them
        if changed:
            self.caveat = f"the training data has changed: {'; '.join(changed)}"
        elif self.mode == "restart":
            self.caveat = f"the training data starts anew: {self.reason}"
        elif gone:
            self.caveat = f"the training data starts anew: it was cached in {gone[0]}, which is gone and made again"
        if self.caveat is not None:
            self._begin(number + 1, self._build(number + 1)["trn"])
            return
        dataset = self._fresh(number)
        if self.mode != "iterator":
            self._begin(number, dataset)
            self.offset = self._behind = offset
            return
        self.iterator = self._restored(prefix, dataset)  # it can fail, and then the present position stays
        self._dataset = dataset
        self._pass, self.offset, self._behind = number, offset, behind
        self._shuffles |= shuffles(prefix)
        is_whole = meta.get("whole") is not False
        if not is_whole:
            self.caveat = "TensorFlow had forgotten how the training data is shuffled in its next pass"
        self._origin = Saved(prefix, Place(offset, behind), self._clock(), is_whole=is_whole)
        self._written.clear()

    def saved_at(self, prefix: str, offset: int) -> None:
        """Take note of where the position after so many batches has been written.

        The newest checkpoint is the one that is kept, and one that was begun earlier may be heard of later.
        """
        saved = self._written.pop(offset, None)
        if saved is not None and offset >= self._origin.place.offset:
            self._origin = saved._replace(prefix=prefix)

    def rewind(self) -> None:
        """Go back to the position that was saved last, after a step that read a batch and failed.

        What lies between it and the last batch that was trained on is read only when the run goes on (`catch_up`):
        reading it now could meet the very record that made the step fail.
        """
        if self.mode == "iterator":
            # The old one first: it reads ahead, and iterators of one dataset share the seeds of its shuffles.
            self.iterator = None
            self._dataset = self._fresh(self._pass)
            self.iterator = self._restored(self._origin.prefix, self._dataset)
            self._behind = self.offset - self._origin.place.position
        elif self.mode == "replay":
            self.iterator = self._iterate(self._build(self._pass)["trn"])
            self._behind = self.offset

    def _restored(self, prefix: str, dataset: tf.data.Dataset) -> Any:
        iterator = self._iterate(dataset)
        try:
            read_state(prefix, iterator)
        except READ_ERRORS as error:
            raise CheckpointError(f"the data position {prefix} cannot be restored: {first_line(error)}") from error
        return iterator

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same for a saved position to mean the same batches."""
        return {
            "elements": {name: f"{spec!r}" for name, spec in sorted(self.element_spec.items())},
            "batches per pass": self.cardinality,
            "seed": self._seed,
            "mode": self.mode,
            "pipeline": self._pipeline,
        }

    def _changes(self, meta: dict[str, Any]) -> list[str]:
        now, then = self.fingerprint(), dict(meta["fingerprint"])
        stages = first_difference(then.pop("pipeline"), now.pop("pipeline"))
        changes = [f"{key} was {then.get(key)} and is {now[key]}" for key in now if now[key] != then.get(key)]
        return changes if stages is None else [*changes, stages]

    # -- building -----------------------------------------------------------------------------------------------------

    def _build(self, number: int) -> dict[str, tf.data.Dataset]:
        """Build the datasets for one pass: what has no seed of its own depends on the run's seed and the pass only."""
        digest = hashlib.sha256(f"{self._seed}/{number}".encode()).digest()
        tf.random.set_seed(self._seed if number == 0 else int.from_bytes(digest[:4], "big"))
        datasets = self._make()
        if not isinstance(datasets, dict) or "trn" not in datasets:
            given = ", ".join(map(repr, datasets)) if isinstance(datasets, dict) else type(datasets).__name__
            raise DataError(f"datasets() must return a dict with the training dataset under 'trn'; it gave {given}")
        return {name: check_dataset(dataset, name) for name, dataset in datasets.items()}

    def _fresh(self, number: int) -> tf.data.Dataset:
        """The dataset of a pass, for another iterator of it.

        The iterators of one dataset share the random generators of its shuffles. A restored state resets those of the
        shuffles that it holds; one that had not begun by then would go on from where another iterator has left it.
        """
        reusable = self.mode == "iterator" and number == self._pass and not self._begins_late
        return self._dataset if reusable else self._build(number)["trn"]

    def _begin(self, number: int, dataset: tf.data.Dataset, start: tf.Tensor | None = None) -> None:
        """Begin a pass, with the dataset that was built for it and, where another iterator has read from that, the
        state in which that one began."""
        self.iterator = self._iterate(dataset)
        if start is not None:
            self.iterator._restore_from_tensors({"_STATE": start})
        self._pass, self.offset, self._behind = number, 0, 0
        if self.mode == "iterator":
            self._dataset = dataset
            prefix = f"{self._memory}/start"
            write_state(prefix, take_state(self.iterator))
            self._origin = Saved(prefix, Place(), self._clock())
            self._written.clear()
            self._shuffles = shuffles(prefix)

    def _iterate(self, dataset: tf.data.Dataset) -> Any:
        if self.mode == "iterator" and int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
            dataset = dataset.repeat()
        return iter(prefetched(dataset, PREFETCH))

    def _find_mode(self) -> tuple[dict[str, Any], tf.Tensor | None]:
        """Try to save an iterator that has begun, and find out what else may serve.

        Returns:
            the first batch, and the state in which the iterator began, if it can be saved.
        """
        if self._is_single_pass:
            self.mode, self.reason = "restart", "each run reads it from its start to its end"
            return first_batch(self._iterate(self._dataset)), None
        probe = self._iterate(self._dataset)
        start = start_state(probe)
        first = first_batch(probe)
        why_not = why_not_saved(probe, self._file_caches, self._memory)
        if why_not is None and start is not None:
            write_state(f"{self._memory}/start", start)
            self._begins_late = count_shuffles(self._dataset) > len(shuffles(f"{self._memory}/start"))
            return first, None if self._begins_late else start
        _forget(self._memory)
        del probe  # it may hold the lock of a cache's file
        self.mode, self.reason = "replay", why_not or "its iterator cannot be saved at its start"
        if not same_batch(first, first_batch(iter(self._build(0)["trn"]))):
            self.mode = "restart"
            self.reason += "; and built again under the same seed it gives other batches"
        return first, None


def _forget(directory: str) -> None:
    if tf.io.gfile.exists(directory):
        tf.io.gfile.rmtree(directory)


def _read_on(iterator: Any, batches: tf.Tensor) -> None:
    for _ in tf.range(batches):
        next(iterator)


_advance = tf.function(_read_on, reduce_retracing=True)
