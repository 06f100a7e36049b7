"""The share of the training data that each of several workers reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from prototrain.errors import ConfigError, DataError
from prototrain.system.tracebacks import first_line
from prototrain.tf_private import divided_by_files

Datasets = dict[str, tf.data.Dataset]
_DIVISIONS = {
    "files": "its own files of the training data",
    "none": "its own training data",
}


@dataclass(frozen=True)
class Share:
    """The worker that reads; the argument of `datasets(worker)`.

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
        ConfigError: it divides the data, and the config has all workers read the same.
    """
    if not _takes_worker(make):
        return make
    if share.count > 1 and share.sharding != "none":
        raise ConfigError(
            f'model.data_sharding is "{share.sharding}", and datasets(worker) gives each worker its own data; set '
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

    Raises:
        DataError: TensorFlow cannot divide the data by its files.
    """
    if not share.is_own or "trn" not in datasets:
        return datasets
    trn = _by_files(datasets["trn"], share) if share.sharding == "files" else datasets["trn"]
    return {**datasets, "trn": trn.rebatch(batch_size, drop_remainder=True).repeat()}


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
