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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.checkpoint import READ_ERRORS, first_line
from prototrain.errors import CheckpointError, DataError, StopTraining
from prototrain.pipeline import describe_pipeline, first_difference, prefetched
from prototrain.positions import file_caches, read_state, take_state, why_not_saved, write_state
from prototrain.tracebacks import cause

PREFETCH = 2
CATCH_UP_BATCHES = 20
LARGE_STATE = 100 * 2**20

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

    Attributes:
        iterator: what batches are read from; another object after a restore or a new pass.
        mode: "iterator", "replay" or "restart".
        reason: why the mode is not "iterator".
        caveat: why the place that was restored last is not the exact one, or None.
        cardinality: batches of one pass, or None if it is not known or endless.

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
    ) -> None:
        self._make = make
        self._seed = seed
        self._announce = announce
        self._pass = 0
        self._offset = 0
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
        # Where the iterator was last saved, and the offset there: a failed step goes back to it.
        memory = f"ram://prototrain/{uuid.uuid4().hex}"
        weakref.finalize(self, _forget, memory)
        self._origin = (f"{memory}/start", 0)
        self.mode, self.reason = "iterator", ""
        self._file_caches = file_caches(self._dataset)
        self._caches_to_make = [name for name in self._file_caches if not Path(f"{name}.index").exists()]
        self.first_batch = self._find_mode(memory)
        if self.mode == "iterator":
            self.iterator = self._iterate(self._dataset)
            write_state(self._origin[0], take_state(self.iterator))
        else:
            self.iterator = self._iterate(self._build(0)["trn"])
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
        begin, behind = time.perf_counter(), self._behind
        while self._behind and not stop_requested():
            batches = min(self._behind, CATCH_UP_BATCHES)
            _advance(self.iterator, tf.constant(batches))
            self._behind -= batches
        read, seconds = behind - self._behind, time.perf_counter() - begin
        self._announce(f"read {read} batches again to get to the place of the run ({seconds:.1f} s)")
        return not self._behind

    def count(self, batches: int) -> None:
        """Take note that so many batches were read from the iterator and trained on."""
        self._offset += batches

    def start_next_pass(self) -> None:
        """Begin the data anew, under the next pass's seed.

        Raises:
            StopTraining: the pass that ended had no batch, or is the only one: there is no more data.
        """
        if self._offset == 0 or self.endless or self._is_single_pass:
            raise StopTraining("the training dataset ran out of data")
        self._pass += 1
        self._offset = 0
        self.iterator = self._iterate(self._build(self._pass)["trn"])

    def stop_reading(self) -> None:
        """End reading ahead; the iterator has no more batches."""
        if self.iterator is not None:
            nothing = self._dataset.take(0)
            tf.raw_ops.MakeIterator(dataset=nothing._variant_tensor, iterator=self.iterator._iterator_resource)

    # -- saving and restoring -----------------------------------------------------------------------------------------

    def write(self, prefix: str) -> Callable[[], dict[str, Any]]:
        """Hold on to the position; returns a function that writes it, as a part of a checkpoint."""
        state = take_state(self.iterator) if self.mode == "iterator" else None
        meta = {
            "mode": self.mode,
            "pass": self._pass,
            "offset": self._offset,
            "behind": self._behind,
            "fingerprint": self.fingerprint(),
        }

        def finish() -> dict[str, Any]:
            if state is not None:
                write_state(prefix, state)
                size = sum(path.stat().st_size for path in Path(prefix).parent.glob(Path(prefix).name + ".*"))
                if size > LARGE_STATE:
                    self._announce(
                        f"WARNING: the data position takes {size / 2**20:.0f} MB in each checkpoint, the content of "
                        "the dataset's buffers; shuffle before decoding or batching to make it small"
                    )
            return meta

        return finish

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
            self.iterator = self._iterate(self._build(number + 1)["trn"])
            self._pass, self._offset, self._behind = number + 1, 0, 0
            return
        in_place = self.mode == "iterator"  # what can fail comes first, and leaves the present position as it is
        self.iterator = self._restored(prefix) if in_place else self._iterate(self._build(number)["trn"])
        self._origin = (prefix, offset - behind)
        self._pass, self._offset, self._behind = number, offset, behind if in_place else offset

    @property
    def position(self) -> int:
        """How many batches of the present pass the iterator has given."""
        return self._offset - self._behind

    def saved_at(self, prefix: str, position: int) -> None:
        """Take note of where a position has been written: the newest checkpoint is the one that is kept.

        One that was begun earlier may be heard of later.
        """
        if position >= self._origin[1]:
            self._origin = (prefix, position)

    def rewind(self) -> None:
        """Go back to the position that was saved last, after a step that read a batch and failed.

        What lies between it and the last batch that was trained on is read only when the run goes on (`catch_up`):
        reading it now could meet the very record that made the step fail.
        """
        if self.mode == "iterator":
            prefix, offset = self._origin
            # The old one first: it reads ahead, and iterators of one dataset share the seeds of its shuffles.
            self.iterator = None
            self.iterator = self._restored(prefix)
            self._behind = self._offset - offset
        elif self.mode == "replay":
            self.iterator = self._iterate(self._build(self._pass)["trn"])
            self._behind = self._offset

    def _restored(self, prefix: str) -> Any:
        iterator = self._iterate(self._dataset)
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

    def _iterate(self, dataset: tf.data.Dataset) -> Any:
        if self.mode == "iterator" and int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
            dataset = dataset.repeat()
        return iter(prefetched(dataset, PREFETCH))

    def _find_mode(self, memory: str) -> dict[str, Any]:
        """Try to save an iterator that has begun, and find out what else may serve; returns the first batch."""
        if self._is_single_pass:
            self.mode, self.reason = "restart", "each run reads it from its start to its end"
            return _first_batch(self._iterate(self._dataset))
        probe = self._iterate(self._dataset)
        first = _first_batch(probe)
        why_not = why_not_saved(probe, self._file_caches, memory)
        _forget(memory)
        if why_not is not None:
            del probe  # it may hold the lock of a cache's file
            self.mode, self.reason = "replay", why_not
            again = _first_batch(iter(self._build(0)["trn"]))
            if not all(_equal(a, b) for a, b in zip(_flat(first), _flat(again), strict=True)):
                self.mode = "restart"
                self.reason += "; and built again under the same seed it gives other batches"
        return first


def check_dataset(dataset: Any, name: str) -> tf.data.Dataset:
    """Check what a model's `datasets` returned under a name.

    Raises:
        DataError: it is not a `tf.data.Dataset` whose elements are dicts of tensors, or it is known to be empty.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise DataError(f"datasets() must give a tf.data.Dataset for {name!r}, not {type(dataset).__name__}")
    if not isinstance(dataset.element_spec, dict):
        raise DataError(
            f"each element of dataset {name!r} must be a dict of batched tensors, "
            f"not a {type(dataset.element_spec).__name__}"
        )
    if int(dataset.cardinality()) == 0:
        raise DataError(f"dataset {name!r} is empty")
    return dataset


def batch_size(inputs: Mapping[str, Any]) -> tf.Tensor:
    """The number of examples in a batch: the first dimension of its first tensor."""
    first = next(iter(inputs.values()))
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    return first.dense_shape[0] if isinstance(first, tf.SparseTensor) else tf.shape(first)[0]


def _first_batch(iterator: Any) -> dict[str, Any]:
    try:
        for batch in iterator:
            return dict(batch)
    except tf.errors.OpError as error:
        raise DataError(f"reading the training dataset 'trn' failed: {cause(error)}") from error
    raise DataError("the training dataset 'trn' is empty")


def _flat(batch: dict[str, Any]) -> list[Any]:
    return list(tf.nest.flatten(batch, expand_composites=True))


def _equal(a: tf.Tensor, b: tf.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    one, two = a.numpy(), b.numpy()
    # NaN marks what is missing in many datasets, and is not equal to itself.
    return bool((one == two).all()) if a.dtype == tf.string else bool(one.tobytes() == two.tobytes())


def _forget(directory: str) -> None:
    if tf.io.gfile.exists(directory):
        tf.io.gfile.rmtree(directory)


def _read_on(iterator: Any, batches: tf.Tensor) -> None:
    for _ in tf.range(batches):
        next(iterator)


_advance = tf.function(_read_on, reduce_retracing=True)
