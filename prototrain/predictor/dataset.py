"""Predicting for a whole dataset."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from prototrain.data.elements import at_path
from prototrain.data.reading_ahead import prefetched
from prototrain.errors import DataError
from prototrain.predictor.predictor import Predictor
from prototrain.system.terminal import in_notebook
from prototrain.system.tracebacks import cause


class DatasetPredictor:
    """What a model gives for the batches of a dataset, one after the other, with a bar on a terminal or in a notebook.

        predict = trainer.get_predictor(["x"], ["classes"])
        for (classes,) in DatasetPredictor(predict, trainer.datasets["vld"]):
            ...
        (classes,) = DatasetPredictor(predict, trainer.datasets["vld"]).predict_all()

    Args:
        predictor: made by `get_predictor`.
        dataset: of batches: a `tf.data.Dataset` of dicts, or anything else that gives dicts, or lists or tuples in the
            order of the predictor's inputs.
        bar: whether there is a bar.
    """

    def __init__(self, predictor: Predictor, dataset: Iterable[Any], *, bar: bool = True) -> None:
        self._predictor = predictor
        self._dataset = dataset
        self._bar = bar

    def __iter__(self) -> Iterator[list[Any]]:
        """The predictor's outputs for each batch, in order.

        Raises:
            DataError: the data cannot be read, or a batch does not have the predictor's inputs.
            ModelError: see `Predictor`.
        """
        return (outputs for _, outputs in self.pairs())

    def pairs(self, wanted: Callable[[Any], bool] = lambda batch: True) -> Iterator[tuple[Any, list[Any]]]:
        """Each batch with the predictor's outputs, in order.

        Args:
            wanted: called with each batch; where it says no, nothing is predicted.

        Raises:
            DataError, ModelError: as above.
        """
        is_hidden = not self._bar or not (sys.stderr.isatty() or in_notebook())
        with tqdm(total=self._length(), unit=" batches", dynamic_ncols=True, disable=is_hidden) as bar:
            for batch in self._batches():
                if wanted(batch):
                    yield batch, self._predictor(*self._inputs(batch))
                bar.update()

    def predict_all(self) -> list[Any]:
        """The outputs for the whole dataset, put together along their first axis.

        Returns:
            an array for each of the predictor's outputs.

        Raises:
            DataError: the dataset is empty or has no end, or outputs of its batches do not fit together.
        """
        if self._cardinality() == tf.data.INFINITE_CARDINALITY:
            raise DataError("the dataset has no end; leave out its repeat(), or take() a part of it")
        found = list(self)
        if not found:
            raise DataError("the dataset is empty")
        return [_together(name, list(parts)) for name, *parts in zip(self._predictor.output_names, *found, strict=True)]

    def _batches(self) -> Iterator[Any]:
        if not isinstance(self._dataset, tf.data.Dataset):
            yield from self._dataset
            return
        try:
            yield from prefetched(self._dataset, 1)
        except tf.errors.OpError as error:
            raise DataError(f"reading the dataset failed: {cause(error)}") from error

    def _inputs(self, batch: Any) -> list[Any]:
        names = self._predictor.input_names
        if isinstance(batch, Mapping):
            try:
                return [at_path(batch, name) for name in names]
            except KeyError as error:
                raise DataError(f"a batch has no {error}; it has: {', '.join(map(str, batch))}") from error
        if not isinstance(batch, list | tuple) or len(batch) < len(names):
            what = f"{len(batch)} components" if isinstance(batch, list | tuple) else type(batch).__name__
            raise DataError(f"a batch must be a dict, or have {', '.join(names)} in this order; got {what}")
        return list(batch[: len(names)])

    def _cardinality(self) -> int | None:
        return int(self._dataset.cardinality()) if isinstance(self._dataset, tf.data.Dataset) else None

    def _length(self) -> int | None:
        length = self._cardinality()
        if length is None and isinstance(self._dataset, Sized):
            length = len(self._dataset)
        return length if length is not None and length >= 0 else None


def _together(name: str, parts: list[Any]) -> Any:
    shapes = [np.shape(part) for part in parts]
    if any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        seen = " and ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise DataError(f"outputs {name!r} of shapes {seen} do not fit together; take those of each batch in a loop")
    return np.concatenate(parts)
