"""Predictors for single batches and for whole datasets."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from prototrain.data.batches import at_path, by_path, from_paths, has_path
from prototrain.errors import DataError, ModelError
from prototrain.readers.flows import without_loss
from prototrain.system.terminal import in_notebook, is_terminal
from prototrain.system.tracebacks import cause, in_one_line


class Predictor:
    """A compiled function from a model's inputs to its outputs.

        predict = trainer.get_predictor(["images"], ["logits"])
        (logits,) = predict(images)

    A predictor shares the training variables, so its results change during training. A call moves the random seeds and
    the states of stateful layers that `build` uses without training. Several threads may call it at the same time. An
    input is any value that `build` uses when `train_phase` is False: a part of a training batch or another value, such
    as a state. All shapes share one trace if `build` can be traced with unknown sizes. It keeps the constants of
    `keras.layers.Normalization` from its first call: make a new one after loading weights.

    Args:
        built: a trainer or a `BuiltModel`, whose `build` is called with `train_phase` False.
        input_names: the names of the inputs in the order of the arguments. A value in a nested batch is named by its
            path, such as ``user/age``; the name of a dict refers to the whole dict.
        output_names: names in the mapping that `build` returns, in the order of the results.

    Raises:
        ModelError: a dict of the training batch has no such path, only some elements of a tuple are named, or names
            are not a list.
    """

    def __init__(self, built: Any, input_names: Sequence[str], output_names: Sequence[str]) -> None:
        self._built = built
        for names in (input_names, output_names):
            if isinstance(names, str):
                raise ModelError(f"a predictor takes lists of names, such as [{names!r}], not {names!r}")
        self.input_names, self.output_names = list(input_names), list(output_names)
        self._specs = {name: self._spec(name) for name in self.input_names}
        try:
            from_paths(self._specs, built.element_spec)
        except KeyError as error:
            raise ModelError(f"input_names: name all elements of the tuple; number {error} is missing") from error
        self._function = tf.function(self._run, autograph=False, reduce_retracing=True)
        self._of_each_shape = tf.function(self._run, autograph=False)

    def __call__(self, *inputs: Any) -> list[Any]:
        """Predict for one batch.

        Args:
            inputs: NumPy arrays or tensors in the order of `input_names`. Parts of a training batch are converted to
                its dtypes. Other float64 arrays are converted to Keras's `floatx`.

        Returns:
            NumPy arrays in the order of `output_names`; sparse and ragged outputs remain tensors.

        Raises:
            ModelError: the number of inputs is wrong, `build` does not use an input or cannot handle its shape, or the
                model has no such output.
        """
        if len(inputs) != len(self.input_names):
            raise ModelError(
                f"the predictor takes {len(self.input_names)} inputs ({', '.join(self.input_names)}), got {len(inputs)}"
            )
        given = zip(self._specs.items(), inputs, strict=True)
        values = [_as_tensors(value) if spec is None else _convert(name, spec, value) for (name, spec), value in given]
        try:
            try:
                outputs = self._function(values)
            except (ModelError, tf.errors.InvalidArgumentError):
                outputs = self._of_each_shape(values)  # fails again unless the unknown size was the cause
                self._function = self._of_each_shape
        except tf.errors.OpError as error:
            raise ModelError(f"the model failed on {self._shown(values)}: {cause(error)}") from error
        return [tf.nest.map_structure(_as_array, out) for out in outputs]

    def _run(self, values: list[Any]) -> list[Any]:
        inputs = from_paths(dict(zip(self.input_names, values, strict=True)), self._built.element_spec)
        try:
            net = self._built.build(inputs, False)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise ModelError(f"build() cannot handle {self._shown(values)}: {in_one_line(error)}") from error
        if missing := [name for name in self.output_names if name not in net]:
            raise ModelError(f"the model has no output {', '.join(map(repr, missing))}; it has: {', '.join(net)}")
        outputs = [net[name] for name in self.output_names]
        returned = set(map(id, _components(outputs)))
        for name, value in zip(self.input_names, values, strict=True):
            # Prediction may not need a part of a training batch, but another unused input may be misspelled.
            is_used = any(tensor.consumers() or id(tensor) in returned for tensor in _components(value))
            if self._specs[name] is None and not is_used:
                raise ModelError(f"build() does not use the input {name!r}; is the name right?")
        return outputs

    def _spec(self, name: str) -> Any:
        specs = self._built.element_spec or {}
        if has_path(specs, name):
            return at_path(specs, name)
        if isinstance(specs.get(name.partition("/")[0]), Mapping | tuple | list):
            raise ModelError(f"there is no input {name!r}; a training batch has: {', '.join(by_path(specs))}")
        return None

    def _shown(self, values: list[Any]) -> str:
        paths = by_path(dict(zip(self.input_names, values, strict=True)))
        return ", ".join(f"{path!r} of shape {value.shape}" for path, value in paths.items())


class DatasetPredictor:
    """Iterates over a model's outputs for a dataset, with a progress bar on a terminal or in a notebook.

        predict = trainer.get_predictor(["x"], ["classes"])
        for (classes,) in DatasetPredictor(predict, trainer.datasets["vld"]):
            ...
        (classes,) = DatasetPredictor(predict, trainer.datasets["vld"]).predict_all()

    Args:
        predictor: the result of `get_predictor`.
        dataset: batches, as a `tf.data.Dataset` or another iterable of dicts, or of lists or tuples in the order of the
            predictor's inputs.
        bar: whether to show a progress bar.
    """

    def __init__(self, predictor: Predictor, dataset: Iterable[Any], *, bar: bool = True) -> None:
        self._predictor = predictor
        self._dataset = dataset
        self._bar = bar

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the predictor's outputs for each batch in order; see `pairs` for the errors."""
        return (outputs for _, outputs in self.pairs())

    def pairs(self) -> Iterator[tuple[Any, list[Any]]]:
        """Yield each batch and the predictor's outputs for it, in order.

        Raises:
            DataError: the data cannot be read, or a batch does not have the predictor's inputs.
            ModelError: see `Predictor`.
        """
        is_hidden = not self._bar or not (is_terminal(sys.stderr) or in_notebook())
        batches, length = self._dataset, None
        if isinstance(batches, tf.data.Dataset):
            length = max(int(batches.cardinality()), 0) or None
            batches = batches.prefetch(1)
        elif isinstance(batches, Sized):
            length = len(batches)
        try:
            with tqdm(total=length, unit=" batches", dynamic_ncols=True, disable=is_hidden) as bar:
                for batch in batches:
                    yield batch, self._predictor(*self._inputs(batch))
                    bar.update()
        except tf.errors.OpError as error:  # the predictor itself raises a ModelError
            raise DataError(f"reading the dataset failed: {cause(error)}") from error

    def predict_all(self) -> list[Any]:
        """Return the outputs for the whole dataset, concatenated along their first axis.

        Returns:
            An array for each of the predictor's outputs.

        Raises:
            DataError: the dataset is empty or infinite.
        """
        if isinstance(self._dataset, tf.data.Dataset) and self._dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise DataError("the dataset has no end; leave out its repeat(), or take() a part of it")
        found = list(self)
        if not found:
            raise DataError("the dataset is empty")
        return [_concatenated(name, parts) for name, *parts in zip(self._predictor.output_names, *found, strict=True)]

    def _inputs(self, batch: Any) -> list[Any]:
        names = self._predictor.input_names
        if isinstance(batch, list | tuple) and len(batch) >= len(names):
            return list(batch[: len(names)])
        if not isinstance(batch, Mapping):
            raise DataError(f"a batch must be a dict, or have {', '.join(names)} in this order; got {batch!r:.60}")
        if missing := [name for name in names if not has_path(batch, name)]:
            raise DataError(f"a batch has no {missing[0]!r}; it has: {', '.join(map(str, batch))}")
        return [at_path(batch, name) for name in names]


def _concatenated(name: str, parts: Sequence[Any]) -> Any:
    try:
        return tf.concat(parts, 0) if isinstance(parts[0], tf.RaggedTensor) else np.concatenate(parts)
    except (ValueError, tf.errors.InvalidArgumentError) as error:  # scalars, or different shapes
        raise ModelError(f"the batches of the output {name!r} cannot be concatenated: {error}") from error


def _as_array(output: Any) -> Any:
    return output.numpy() if isinstance(output, tf.Tensor) else output  # not for ragged tensors


def _components(value: Any) -> list[Any]:
    return list(tf.nest.flatten(value, expand_composites=True))


def _as_tensors(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_tensors(inside) for name, inside in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_as_tensors, value))
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        value = value.astype(keras.config.floatx())
    return value if tf.is_tensor(value) else tf.convert_to_tensor(value)


def _convert(name: str, spec: Any, value: Any) -> Any:
    """Convert an input to the dtypes and structure of a training batch."""
    if isinstance(spec, Mapping | tuple | list):
        items = list(spec.items() if isinstance(spec, Mapping) else enumerate(spec))
        if missing := [str(key) for key, _ in items if not has_path(value, str(key))]:
            raise ModelError(f"input {name!r} must be a structure as in a training batch; it has no {missing[0]!r}")
        inside = {key: _convert(f"{name}/{key}", one, at_path(value, str(key))) for key, one in items}
        return inside if isinstance(spec, Mapping) else tuple(inside.values())
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    if tf.is_tensor(value) and value.dtype == spec.dtype:
        return value
    if isinstance(spec, tf.RaggedTensorSpec) and isinstance(value, list):
        return tf.ragged.constant(value, spec.dtype, ragged_rank=spec.ragged_rank)
    try:
        return tf.convert_to_tensor(without_loss(f"input {name!r}", value, spec.dtype), spec.dtype)
    except (DataError, TypeError, ValueError) as error:  # ValueError for ragged lists
        raise ModelError(f"{in_one_line(error)} (a training batch has {spec.dtype.name})") from error
