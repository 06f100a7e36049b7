"""The datasets of a model: made once if Python code gives the data, else for each pass that draws random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from prototrain.checkpoint.values import global_random_kept
from prototrain.data.batches import check_dataset
from prototrain.data.pipeline import describe_sources, operations, stages
from prototrain.data.rule import draws, is_python, is_random
from prototrain.errors import DataError
from prototrain.readers.order import making_pass
from prototrain.system.waiting import announcing

Datasets = dict[str, tf.data.Dataset]


class Source:
    """Builds datasets so that shuffles without a seed depend on the run's seed and the pass only.

    All datasets of a run come from one call, so that validation examples never come among those to train on: of later
    calls only the training dataset is used, and it only where it is made of the same data.

    Raises:
        DataError: there is no training dataset, or one of them is empty or does not give dicts of tensors.
    """

    def __init__(self, make: Callable[[], Datasets], seed: int, announce: Callable[[str], None]) -> None:
        self._make = make
        self._announce = announce
        self.seed = seed
        self.datasets = self._call(0)
        self._is_repeated = True

    @property
    def is_made_once(self) -> bool:
        """Whether all passes read one dataset, whose Python code or shuffles move on from pass to pass."""
        return not self._follows_pass and is_python(self.training)

    @property
    def training(self) -> tf.data.Dataset:
        """The run's training dataset, as of the first pass."""
        return self.datasets["trn"]

    def rebuild(self) -> None:
        """Have the datasets of the run made once more, after something was read from them."""
        self.datasets = self._call(0)

    def training_of(self, number: int) -> tf.data.Dataset:
        """The training dataset of a pass, counted from 0: built again if it depends on the pass."""
        if self._is_repeated and self._follows_pass:
            dataset = self._call(number)["trn"]
            if describe_sources(dataset) == describe_sources(self.training):
                return dataset
            self._is_repeated = False
            self._announce(
                "datasets() gives other data whenever it is called; the run continues with that of the first call "
                "(seed every random generator that it makes)"
            )
        return self.training

    def _call(self, number: int) -> Datasets:
        digest = hashlib.sha256(f"{self.seed}/{number}".encode()).digest()
        waiting = announcing("waiting for the model's datasets()", self._announce)
        with (
            waiting,
            making_pass(number) as is_asked,
            _seeded(self.seed, self.seed if number == 0 else int.from_bytes(digest[:4], "big")),
        ):
            datasets = self._make()
            self._follows_pass = is_asked()
        if not isinstance(datasets, dict) or "trn" not in datasets:
            given = ", ".join(map(repr, datasets)) if isinstance(datasets, dict) else type(datasets).__name__
            raise DataError(
                f"datasets() must return a dict with the training dataset under 'trn'; it gave {given}; write "
                'return {"trn": ..., "vld": ...}'
            )
        checked = {name: check_dataset(dataset, name) for name, dataset in datasets.items()}
        # A shuffle draws other numbers in each reading of one dataset; the random ops of a function give the same ones,
        # as their seeds are set where the function is traced.
        training = checked["trn"]
        in_functions = any(is_random(op) for stage in stages(training) for op in operations(stage))
        self._follows_pass |= in_functions or (not is_python(training) and any(map(draws, stages(training))))
        return checked


@contextmanager
def _seeded(seed: int, of_pass: int) -> Iterator[None]:
    """Put all global random generators to a state that depends on the seeds only, and afterwards back.

    Python, NumPy and Keras have one seed for all passes, so that a random split is the same in each; `tf.data` shuffles
    by that of the pass.
    """
    with global_random_kept():
        keras.utils.set_random_seed(seed)
        tf.random.set_seed(of_pass)
        yield
