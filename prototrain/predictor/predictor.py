"""A function made of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from prototrain.data.elements import at_path, by_path, from_paths, has_path
from prototrain.errors import ModelError
from prototrain.predictor.traces import Traces
from prototrain.private_api.graphs import passing_graph
from prototrain.system.tracebacks import cause, in_one_line


class Buildable(Protocol):
    """What a predictor calls: a trainer, or a model that was built without one.

    Attributes:
        element_spec: what a training batch looks like, by name, where that is known.
    """

    @property
    def element_spec(self) -> Mapping[str, Any] | None: ...

    def build(self, inputs: dict[str, Any], train_phase: bool) -> Mapping[str, Any]:
        """Return named tensors for a batch."""


class Predictor:
    """A compiled function from arrays or tensors to arrays. It shares the training variables: what it returns changes
    as training goes on. Any number of threads may call it at the same time, also while the model is trained.

        predict = trainer.get_predictor(["images"], ["logits"])
        (logits,) = predict(images)

    An input is whatever `build` reads from its inputs when it is not training: a part of a training batch, or something
    else, such as a state to go on from. It may have any shape that `build` can do with; other shapes than those before
    are traced anew, except for batches of another size.

    Args:
        built: whose `build` is called, not training.
        input_names: names of inputs, in the order in which the function takes them. What is inside of a batch's dicts
            is named by its path, ``user/age``; the name of a dict stands for all that is in it.
        output_names: names in the model's mapping, in the order in which the function returns them.
        log: prints a line for the user.

    Raises:
        ModelError: there is no such path in a dict of a training batch, or of a tuple not all is named.
    """

    def __init__(
        self,
        built: Buildable,
        input_names: Sequence[str],
        output_names: Sequence[str],
        *,
        log: Callable[[str], None] = print,
    ) -> None:
        self._built = built
        self.input_names = _names(input_names, "input_names")
        self.output_names = _names(output_names, "output_names")
        self._specs = {name: self._spec(name) for name in self.input_names}
        try:
            from_paths(self._specs, built.element_spec)
        except KeyError as error:
            raise ModelError(f"input_names: of a tuple all is needed, also number {error}") from error
        label = f"the predictor from {', '.join(self.input_names)} to {', '.join(self.output_names)}"
        self._traces = Traces(self._run, label, log=log)

    def __call__(self, *inputs: Any) -> list[Any]:
        """Predict.

        Args:
            inputs: NumPy arrays or tensors in the order of `input_names`. The types of those that a training batch has
                are converted to those of it. Of others an array of float64 becomes one of Keras's `floatx`, and a dict
                or a tuple stays one, of tensors.

        Returns:
            NumPy arrays in the order of `output_names` (for sparse or ragged outputs the tensors themselves).

        Raises:
            ModelError: their number is wrong, `build` has no use for one or cannot do with its shape, or the model has
                no such output.
        """
        if len(inputs) != len(self.input_names):
            raise ModelError(
                f"the predictor takes {len(self.input_names)} inputs ({', '.join(self.input_names)}), got {len(inputs)}"
            )
        values = [self._convert(name, value) for name, value in zip(self.input_names, inputs, strict=True)]
        try:
            outputs = self._traces(values)
        except tf.errors.OpError as error:
            raise ModelError(f"the model failed on {self._shown(values)}: {cause(error)}") from error
        return [tf.nest.map_structure(_as_array, output) for output in outputs]

    def _run(self, values: list[Any]) -> list[Any]:
        inputs = from_paths(dict(zip(self.input_names, values, strict=True)), self._built.element_spec)
        try:
            net = self._built.build(inputs, False)
        except KeyError as error:
            (name, *_) = error.args or (None,)
            if name in inputs or not isinstance(name, str):
                raise
            raise ModelError(f"build() asks for {name!r}; the predictor is given: {', '.join(inputs)}") from error
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            if not self._has_other_shapes(values):
                raise
            seen = {name: spec for name, spec in self._specs.items() if spec is not None}
            trained = f" (a training batch has {_in_words(seen)})" if seen else ""
            raise ModelError(f"build() cannot do with {self._shown(values)}{trained}: {in_one_line(error)}") from error
        missing = [name for name in self.output_names if name not in net]
        if missing:
            raise ModelError(f"the model has no output {', '.join(map(repr, missing))}; it has: {', '.join(net)}")
        outputs = [net[name] for name in self.output_names]
        self._check_read(values, outputs, inputs)
        return outputs

    # -- what is wrong with inputs ------------------------------------------------------------------------------------

    def _check_read(self, values: list[Any], outputs: list[Any], inputs: dict[str, Any]) -> None:
        """Fail if an input that is no part of a training batch has no effect: its name may be misspelt."""
        returned = {id(tensor) for tensor in tf.nest.flatten(outputs, expand_composites=True)}
        unread = [
            name
            for name, value in zip(self.input_names, values, strict=True)
            if self._specs[name] is None
            and not any(tensor.consumers() or id(tensor) in returned for tensor in _components(value))
        ]
        if not unread:
            return
        noting = _NotingDict(inputs)
        # Keras takes a dict of another class for one tensor. Then nothing more is known of what is asked for.
        with passing_graph("names").as_default(), suppress(TypeError, ValueError):
            self._built.build(noting, False)
        for name in unread:
            if name not in noting.asked:  # otherwise only its shape, or that it was there, has counted
                known = dict.fromkeys([*noting.asked, *by_path(self._built.element_spec or {})])
                raise ModelError(f"build() does not read the input {name!r}; it knows of: {', '.join(known)}")

    def _has_other_shapes(self, values: list[Any]) -> bool:
        given = zip(self._specs.values(), values, strict=True)
        return any(spec is None or not all(map(_fits, _components(spec), _components(value))) for spec, value in given)

    # -- converting ---------------------------------------------------------------------------------------------------

    def _spec(self, name: str) -> Any:
        specs = self._built.element_spec or {}
        if has_path(specs, name):
            return at_path(specs, name)
        if isinstance(specs.get(name.partition("/")[0]), Mapping | tuple | list):
            raise ModelError(f"there is no input {name!r}; a training batch has: {', '.join(by_path(specs))}")
        return None

    def _convert(self, name: str, value: Any) -> Any:
        spec = self._specs[name]
        if spec is None:
            return _as_tensors(value)
        if not isinstance(spec, Mapping | tuple | list):
            return _convert_to(spec, value)
        wanted = by_path(spec)
        missing = [path for path in wanted if not has_path(value, path)]
        if missing:
            raise ModelError(f"input {name!r} must have {', '.join(wanted)}; there is no {', '.join(missing)} in it")
        values = {f"it/{path}": _convert_to(one, at_path(value, path)) for path, one in wanted.items()}
        return from_paths(values, {"it": spec}).get("it", {})

    def _shown(self, values: list[Any]) -> str:
        return _in_words(dict(zip(self.input_names, values, strict=True)))


class _NotingDict(dict[str, Any]):
    """A dict that notes what it is asked for, in `asked`."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self.asked: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        self.asked[name] = None
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked[str(name)] = None
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked[name] = None
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self.asked.update(dict.fromkeys(super().keys()))
        return super().__iter__()

    def items(self) -> Any:
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        return {name: self[name] for name in self}.values()


def _names(names: Sequence[str], what: str) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{what} must be a list of names, such as ['images'], not {names!r}")
    return list(names)


def _components(value: Any) -> list[Any]:
    return list(tf.nest.flatten(value, expand_composites=True))


def _fits(spec: Any, value: Any) -> bool:
    """Whether a tensor has the shape of a training batch's, in which batches may have any size."""
    wanted, got = spec.shape, value.shape
    return bool(wanted.rank == got.rank and wanted[1:].is_compatible_with(got[1:]))


def _in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{path!r} of shape {getattr(one, 'shape', '()')}" for path, one in by_path(values).items())


def _as_tensors(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_tensors(inside) for name, inside in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_as_tensors, value))
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        value = value.astype(keras.config.floatx())
    return value if tf.is_tensor(value) else tf.convert_to_tensor(value)


def _as_array(value: Any) -> Any:
    return value.numpy() if isinstance(value, tf.Tensor) else value


def _convert_to(spec: Any, value: Any) -> Any:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    if tf.is_tensor(value):
        return tf.cast(value, spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec) and isinstance(value, list):
        return tf.ragged.constant(value, spec.dtype, ragged_rank=spec.ragged_rank)
    return tf.convert_to_tensor(np.asarray(value), spec.dtype)
