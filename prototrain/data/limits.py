"""Less data than there is, to try a model on: the first batches of each dataset, or the same few again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import tensorflow as tf

Datasets = dict[str, tf.data.Dataset]


def limited(make: Callable[[], Datasets], *, limit: int | None, overfit: int | None) -> Callable[[], Datasets]:
    """Let a model's `datasets` give less.

    Args:
        make: a model's `datasets`.
        limit: how many batches a pass over each dataset has at most; None for all.
        overfit: how many training batches are to be learned by heart: those that the first pass begins with take the
            place of every dataset. None for no such thing.

    Returns:
        what to call in its place.
    """
    if limit is None and overfit is None:
        return make
    kept: list[tf.data.Dataset] = []

    def datasets() -> Datasets:
        found = make()
        if overfit is not None and isinstance(found, dict) and "trn" in found:
            if not kept:
                kept.append(_in_memory(found["trn"], overfit))
            return dict.fromkeys(found, kept[0])
        return {name: dataset.take(limit) for name, dataset in found.items()}

    return datasets


def _in_memory(dataset: tf.data.Dataset, batches: int) -> tf.data.Dataset:
    found = [tf.data.Dataset.from_tensors(batch) for batch in dataset.take(batches)]
    # Nothing to learn by heart: the run says that the dataset is empty.
    return reduce(lambda one, other: one.concatenate(other), found) if found else dataset
