"""The datasets of a model, built anew for each pass that needs them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import tensorflow as tf

from prototrain.data.elements import check_dataset
from prototrain.errors import DataError

Datasets = dict[str, tf.data.Dataset]


class Source:
    """Builds datasets so that what has no seed of its own depends on the run's seed and the pass only.

    Args:
        make: a model's `datasets`.
        seed: the run's seed.

    Attributes:
        seed: as it was given.
        datasets: those of the first call.

    Raises:
        DataError: there is no training dataset, or one of them is empty or does not give dicts of tensors.
    """

    def __init__(self, make: Callable[[], Datasets], seed: int) -> None:
        self._make = make
        self.seed = seed
        self.datasets = self.build(0)

    @property
    def training(self) -> tf.data.Dataset:
        """The training dataset of the first call."""
        return self.datasets["trn"]

    def build(self, number: int) -> Datasets:
        """Call `make` for a pass, counted from 0.

        Raises:
            DataError: see the class.
        """
        digest = hashlib.sha256(f"{self.seed}/{number}".encode()).digest()
        tf.random.set_seed(self.seed if number == 0 else int.from_bytes(digest[:4], "big"))
        datasets = self._make()
        if not isinstance(datasets, dict) or "trn" not in datasets:
            given = ", ".join(map(repr, datasets)) if isinstance(datasets, dict) else type(datasets).__name__
            raise DataError(f"datasets() must return a dict with the training dataset under 'trn'; it gave {given}")
        return {name: check_dataset(dataset, name) for name, dataset in datasets.items()}
