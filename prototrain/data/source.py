"""The datasets of a model, made for a worker and for each pass under the run's seed."""

from __future__ import annotations

import hashlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from prototrain.checkpoint.values import preserve_global_random
from prototrain.data.batches import Datasets, check_dataset
from prototrain.data.pipeline import describe_sources, draws, is_python, is_random, operations, stages
from prototrain.errors import ConfigError, DataError
from prototrain.readers.order import making_pass
from prototrain.system.terminal import announcing
from prototrain.system.tracebacks import cause
from prototrain.tf_private import divided_by_files, taking_python_functions

_DIVISIONS = {"files": "its own files of the training data", "none": "its own training data"}


@dataclass(frozen=True)
class Share:
    """The worker that reads the data; the argument of `datasets(worker)`.

    Attributes:
        index: index of the worker, from 0.
        count: number of workers.
        sharding: ``model.data_sharding``.
    """

    index: int = 0
    count: int = 1
    sharding: str = "batch"

    @property
    def is_divided(self) -> bool:
        """Whether this worker reads only its part of each global batch."""
        return self.count > 1 and self.sharding != "batch"

    @property
    def division(self) -> str | None:
        """A description of how workers divide the data; None if each worker reads all of it."""
        return f"each of {self.count} workers reads {_DIVISIONS[self.sharding]}" if self.is_divided else None


def bind_worker(make: Callable[..., Datasets], share: Share) -> Callable[[], Datasets]:
    """Return a model's `datasets` as a function without arguments, with its argument `worker` bound."""
    if "worker" not in inspect.signature(make).parameters:
        return make
    if share.count > 1 and share.sharding != "none":
        raise ConfigError(
            f'model.data_sharding is "{share.sharding}", and datasets(worker) gives each worker its own data; set '
            'it to "none", or let datasets() take no argument'
        )
    return partial(make, worker=share)


def shard_for_worker(datasets: Datasets, share: Share, batch_size: int) -> Datasets:
    """Return the datasets with this worker's share of "trn", repeated endlessly: shares differ in length."""
    if not share.is_divided or "trn" not in datasets:
        return datasets
    trn = datasets["trn"]
    if share.sharding == "files":
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
        try:
            trn = divided_by_files(trn.with_options(options), share.count, share.index)
        except tf.errors.OpError as error:
            raise DataError(
                'model.data_sharding is "files", and the training data does not come from enough files that TensorFlow '
                'can divide, such as those of TFRecordDataset; use datasets(worker) and set it to "none" '
                f"({cause(error)})"
            ) from error
    return {**datasets, "trn": trn.rebatch(batch_size, drop_remainder=True).repeat()}


class Source:
    """Builds the datasets of a run; unseeded shuffles depend only on the run's seed and the pass.

    All datasets of a run come from one call of `datasets()`, so validation examples are never trained on. Later calls
    provide only the training dataset, and only if it has the same data.
    """

    def __init__(
        self, make: Callable[[], Datasets], seed: int, announce: Callable[[str], None], *, share: Share, repeat: bool
    ) -> None:
        self._make = make
        self.seed, self.announce, self.share = seed, announce, share
        self.repeats_itself = True  # whether all calls of `datasets()` have returned the same data
        # Python functions of the last two passes: an iterator over the earlier one may still be ending.
        self._functions: deque[list[Any]] = deque(maxlen=2)
        self.rebuild()
        # Whether training ends with the dataset.
        self.is_single_pass = not repeat and self.training.cardinality() != tf.data.INFINITE_CARDINALITY

    def rebuild(self) -> None:
        """Build the datasets of the run, again after something was read from them."""
        self.datasets = self._call(0)

    @property
    def training(self) -> tf.data.Dataset:
        """The training dataset of the first pass."""
        return self.datasets["trn"]

    @property
    def is_made_once(self) -> bool:
        """Whether all passes read one dataset, whose Python code and shuffles continue across passes."""
        return not self._follows_pass and is_python(self.training)

    def training_of(self, number: int) -> tf.data.Dataset:
        """Return the training dataset of a pass, counted from 0; builds it again if it depends on the pass."""
        if self.repeats_itself and self._follows_pass:
            with taking_python_functions() as functions:
                dataset = self._call(number)["trn"]
            self._functions.append(functions)
            if describe_sources(dataset) == describe_sources(self.training):
                return dataset
            self.repeats_itself = False
            self.announce(
                "datasets() returns different data in each call; the run continues with the data of the first call "
                "(seed every random generator in datasets())"
            )
        return self.training

    def _call(self, number: int) -> Datasets:
        waiting = announcing("waiting for the model's datasets()", self.announce)
        with waiting, making_pass(number) as is_asked, self._seeded(number):
            datasets = self._make()
            self._follows_pass = is_asked()
        is_dict = isinstance(datasets, dict)
        if not is_dict or "trn" not in datasets:
            given = (", ".join(map(repr, datasets)) or "nothing") if is_dict else type(datasets).__name__
            raise DataError(
                f"datasets() must return a dict with the training dataset under 'trn'; it gave {given}; write "
                'return {"trn": ..., "vld": ...}'
            )
        checked = {name: check_dataset(dataset, name) for name, dataset in datasets.items()}
        # A shuffle draws new numbers each time one dataset is iterated. Random ops in a function repeat theirs, since
        # their seeds are set when the function is traced.
        training = checked["trn"]
        in_functions = any(is_random(op) for stage in stages(training) for op in operations(stage))
        self._follows_pass |= in_functions or (not is_python(training) and any(map(draws, stages(training))))
        return checked

    @contextmanager
    def _seeded(self, number: int) -> Iterator[None]:
        """Context manager that seeds all global random generators and restores their states on exit.

        Only TensorFlow's seed depends on the pass; the others keep a random split the same.
        """
        of_pass = hashlib.sha256(f"{self.seed}/{number}".encode()).digest()
        with preserve_global_random():
            keras.utils.set_random_seed(self.seed)
            tf.random.set_seed(int.from_bytes(of_pass[:4], "big") if number else self.seed)
            yield
