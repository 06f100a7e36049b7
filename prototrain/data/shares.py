"""What each of several workers reads: all of the training data, or a share of its own with a place of its own."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.errors import CheckpointError, ConfigError, DataError
from prototrain.experiment import checkpoint_steps
from prototrain.system.tracebacks import first_line
from prototrain.tf_private import divided_by_files

if TYPE_CHECKING:
    from prototrain.data.stream import TrainingData

Datasets = dict[str, tf.data.Dataset]
_PLACE = re.compile(r"place-(\d{10,})")
_DIVISIONS = {
    "files": "its own files of the training data",
    "none": "training data of its own",
}


@dataclass(frozen=True)
class Share:
    """Which of several workers reads; what `datasets(worker)` is given.

    Attributes:
        index: its number, from 0.
        count: how many there are.
        sharding: what ``model.data_sharding`` says.
    """

    index: int = 0
    count: int = 1
    sharding: str = "batch"

    @property
    def is_own(self) -> bool:
        """Whether what this worker reads is its part of each global batch, and not all of it."""
        return self.count > 1 and self.sharding != "batch"

    @property
    def division(self) -> str | None:
        """How the data is divided among workers, in words; None where everyone reads all of it."""
        return f"each of {self.count} workers reads {_DIVISIONS[self.sharding]}" if self.is_own else None


def for_worker(make: Callable[..., Datasets], share: Share) -> Callable[[], Datasets]:
    """A model's `datasets` as a function without arguments: one that takes a worker is given it.

    Raises:
        ConfigError: it divides the data by itself, and the config has all workers read the same.
    """
    if not _takes_worker(make):
        return make
    if share.count > 1 and share.sharding != "none":
        raise ConfigError(
            f'model.data_sharding is "{share.sharding}", and datasets(worker) gives each worker data of its own; set '
            'it to "none", or let datasets() take no argument'
        )
    return partial(make, share)


def _takes_worker(make: Callable[..., Any]) -> bool:
    try:
        first = next(iter(inspect.signature(make).parameters.values()), None)
    except (TypeError, ValueError):  # of a builtin nothing is known
        return False
    by_place = first is not None and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    return first is not None and by_place and (first.default is first.empty or first.name == "worker")


def shared_out(datasets: Datasets, share: Share, batch_size: int) -> Datasets:
    """Give a worker its own share of the training data, without an end: passes over shares are not equally long.

    Args:
        datasets: as the model gives them.
        share: this worker's.
        batch_size: how many examples of each step are this worker's.

    Raises:
        DataError: TensorFlow cannot divide the data by its files.
    """
    if not share.is_own or "trn" not in datasets:
        return datasets
    trn = _by_files(datasets["trn"], share) if share.sharding == "files" else datasets["trn"]
    return {**datasets, "trn": trn.rebatch(batch_size, drop_remainder=True).repeat()}


def own_spec(declared: Mapping[str, Any] | None, share: Share) -> Mapping[str, Any] | None:
    """What a worker's own batches look like, where a model says what whole ones look like."""
    if declared is None or not share.is_own:
        return declared

    def open_size(spec: Any) -> Any:
        plain = isinstance(spec, tf.TensorSpec) and spec.shape.rank
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if plain else spec

    found: Mapping[str, Any] = tf.nest.map_structure(open_size, dict(declared))
    return found


def _by_files(dataset: tf.data.Dataset, share: Share) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    try:
        return divided_by_files(dataset.with_options(options), share.count, share.index)
    except tf.errors.NotFoundError as error:
        raise DataError(
            'model.data_sharding is "files", and the training data does not come from files that TensorFlow can '
            "divide, such as those of TFRecordDataset or TextLineDataset; divide it in datasets(worker) and set "
            'model.data_sharding to "none"'
        ) from error
    except tf.errors.OpError as error:
        raise DataError(f'model.data_sharding is "files": {first_line(error)}') from error


class OwnPlaces:
    """Where one worker is in its own share, on disk beside the chief's checkpoints.

    A place is written whenever the chief has saved, but need not be of the very step that a run goes on from: what lies
    between is read again.

    Args:
        directory: of this worker.
        checkpoints: the directory of the chief's.
    """

    def __init__(self, directory: Path, checkpoints: Path) -> None:
        self._directory = directory
        self._checkpoints = checkpoints

    def write(self, data: TrainingData, *, is_start: bool = False) -> None:
        """Write the present place; places that no checkpoint needs go.

        Args:
            data: this worker's.
            is_start: whether a run begins here, which leaves no place behind it.

        Raises:
            OSError: it cannot be written.
        """
        name = f"place-{data.total:010d}"
        unfinished = self._directory / f".tmp-{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        meta = data.write(str(unfinished / "data"))()
        (unfinished / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        shutil.rmtree(self._directory / name, ignore_errors=True)
        unfinished.rename(self._directory / name)
        needed = {data.total, *checkpoint_steps(self._checkpoints)}
        for total in self._totals():
            if total not in needed or (is_start and total > data.total):
                shutil.rmtree(self._directory / f"place-{total:010d}", ignore_errors=True)

    def clear(self) -> None:
        """Delete all places."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def restore(self, data: TrainingData, total: int, division: str) -> bool:
        """Go to where this worker had read so many batches.

        Args:
            data: this worker's.
            total: how many.
            division: how the data was divided then.

        Returns:
            whether it is there.

        Raises:
            CheckpointError: the data has changed.
        """
        for found in sorted(self._totals(), reverse=True):
            if found <= total and self._take(data, self._directory / f"place-{found:010d}", division):
                for _ in range(total - found):
                    data.next_batch()
                return True
        return False

    def _take(self, data: TrainingData, path: Path, division: str) -> bool:
        try:
            meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
            if meta["fingerprint"].get("division") != division:
                return False
        except (AttributeError, KeyError, OSError, TypeError, ValueError):
            return False
        data.require_unchanged(meta)
        try:
            data.go_to(str(path / "data"), meta)
        except CheckpointError:  # half of it is there, after the machine has broken down
            return False
        return True

    def _totals(self) -> list[int]:
        if not self._directory.is_dir():
            return []
        names = (path.name for path in self._directory.iterdir())
        return [int(match[1]) for match in map(_PLACE.fullmatch, names) if match]
