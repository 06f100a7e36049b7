"""What a model's `datasets` may give besides `tf.data`, made into datasets whose batches are dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from prototrain.data.arrays import from_arrays
from prototrain.data.grain_data import from_grain, is_grain
from prototrain.data.python_data import from_py_dataset
from prototrain.errors import DataError
from prototrain.readers import dataflow

PARTS = ("x", "y", "sample_weight")
"""What the parts of a tuple are called."""


def as_datasets(given: Any, config: Mapping[str, Any]) -> Any:
    """Datasets of what a model's `datasets` has returned; what is none of the kinds below stays as it is.

    - arrays: a dict of them, or a tuple of up to three, ``(x, y, sample_weight)``. Their rows are the examples; those
      of "trn" are shuffled anew in each pass and fill batches, those of others come in their order;
    - a `keras.utils.PyDataset`; the batches of "trn" come in another order in each pass, as in `fit`;
    - a Grain `MapDataset` or `IterDataset` of batches;
    - a DataFlow of tensorpack's, of batches: it has `reset_state`.

    A batch that is a tuple becomes a dict as a tuple of arrays does, and one that is a single array becomes its "x".

    Args:
        given: what was returned, by name.
        config: its ``model.batch_size`` is that of batches made of arrays.

    Raises:
        DataError: one cannot be read, or is empty.
    """
    if not isinstance(given, dict):
        return given
    return {name: _as_dataset(value, name, config) for name, value in given.items()}


def _as_dataset(value: Any, name: str, config: Mapping[str, Any]) -> Any:
    training = name == "trn"
    if isinstance(value, tf.data.Dataset):
        return value
    if isinstance(value, keras.utils.PyDataset):
        return named(from_py_dataset(value, shuffle=training, ends_epochs=training), name)
    if is_grain(value):
        return from_grain(value, lambda batch: named_parts(batch, name), name)
    if hasattr(value, "reset_state") and isinstance(value, Iterable):
        kind = type(type(value).__name__, (_Named,), {})  # messages have the name
        return dataflow(kind(value, name), batched=True)
    if isinstance(value, Mapping) or (isinstance(value, tuple) and value):
        arrays = dict(value) if isinstance(value, Mapping) else named_parts(value, name)
        return from_arrays(arrays, name, config["model.batch_size"], training=training)
    return value


def named(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    """A dataset whose batches are dicts."""
    if isinstance(dataset.element_spec, dict):
        return dataset
    return dataset.map(lambda *parts: named_parts(parts, name))


def named_parts(batch: Any, name: str) -> dict[str, Any]:
    """A batch as a dict: the parts of a tuple or list are called as in `PARTS`, and one array "x".

    Raises:
        DataError: there are more parts than names.
    """
    if isinstance(batch, Mapping):
        return dict(batch)
    parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if len(parts) > len(PARTS):
        raise DataError(
            f"a tuple of {len(parts)} in dataset {name!r} has no names: up to three are {', '.join(PARTS)}; give a dict"
        )
    return {key: part for key, part in zip(PARTS, parts, strict=False) if part is not None}


class _Named:
    """A DataFlow whose data points are dicts."""

    def __init__(self, flow: Any, name: str) -> None:
        self._flow = flow
        self._name = name

    def reset_state(self) -> None:
        self._flow.reset_state()

    def __len__(self) -> int:
        return len(self._flow)

    def __iter__(self) -> Any:
        return (named_parts(point, self._name) for point in self._flow)
