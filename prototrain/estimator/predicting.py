"""What a `model_fn` predicts, batch by batch or example by example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from prototrain.errors import ModelError
from prototrain.estimator.export import named
from prototrain.estimator.trainers import BuiltProgram


def predictions_of(built: BuiltProgram, predict_keys: Sequence[str] | str | None, *, by_example: bool) -> Iterator[Any]:
    """Yield the predictions of a model over its data; see `Estimator.predict`.

    Args:
        built: has the data.
        predict_keys: names of the predictions to give; all if None.
        by_example: whether to give them example by example, or in batches.

    Raises:
        ModelError: there is no such key, or a prediction is not one for each example.
    """
    predictions = built.model.spec.predictions
    single = not isinstance(predictions, Mapping)
    found = ["output"] if single else list(predictions)
    asked = [predict_keys] if isinstance(predict_keys, str | tuple) else predict_keys
    keys = [key for key in found if asked is None or key in asked]
    if not keys:
        raise ModelError(f"predict_keys: there is none of {asked}; model_fn predicts {', '.join(map(str, found))}")
    names = list(built.data.element_spec)
    predictor = built.get_predictor(names, list(named(dict.fromkeys(keys))))
    for batch in built.datasets["trn"]:
        arrays = dict(zip(keys, predictor(*(batch[name] for name in names)), strict=True))
        for example in _examples(arrays) if by_example else [arrays]:
            yield example["output"] if single else example


def _examples(arrays: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sizes = {name: len(array) if np.ndim(array) else None for name, array in arrays.items()}
    if len(set(sizes.values())) != 1 or None in sizes.values():
        shapes = ", ".join(f"{name} {np.shape(array)}" for name, array in arrays.items())
        raise ModelError(f"predictions are not one for each example ({shapes}); use yield_single_examples=False")
    for index in range(next(iter(sizes.values())) or 0):
        yield {name: array[index] for name, array in arrays.items()}
