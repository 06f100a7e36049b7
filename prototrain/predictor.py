"""Using a model while it is being trained, or after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from prototrain.data.elements import at_path, by_path, from_paths, has_path
from prototrain.errors import ModelError


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
    as training goes on.

        predict = trainer.get_predictor(["images"], ["logits"])
        (logits,) = predict(images)

    Args:
        built: whose `build` is called, not training.
        input_names: names of inputs, in the order in which the function takes them. What is inside of a batch's dicts
            is named by its path, ``user/age``; the name of a dict stands for all that is in it.
        output_names: names in the model's mapping, in the order in which the function returns them.

    Raises:
        ModelError: an input is not part of a training batch.
    """

    def __init__(self, built: Buildable, input_names: Sequence[str], output_names: Sequence[str]) -> None:
        self._built = built
        self.input_names = _names(input_names, "input_names")
        self.output_names = _names(output_names, "output_names")
        self._specs = {name: self._spec(name) for name in self.input_names}
        try:
            from_paths(self._specs, built.element_spec)
        except KeyError as error:
            raise ModelError(f"input_names: of a tuple all is needed, also number {error}") from error
        self._call = tf.function(self._run, autograph=False, reduce_retracing=True)

    def __call__(self, *inputs: Any) -> list[Any]:
        """Predict.

        Args:
            inputs: NumPy arrays or tensors in the order of `input_names`, with a batch dimension of any size; their
                types are converted to those of the training data.

        Returns:
            NumPy arrays in the order of `output_names` (for sparse or ragged outputs the tensors themselves).

        Raises:
            ModelError: their number or a shape is wrong, or the model has no such output.
        """
        if len(inputs) != len(self.input_names):
            raise ModelError(
                f"the predictor takes {len(self.input_names)} inputs ({', '.join(self.input_names)}), got {len(inputs)}"
            )
        values = [self._convert(name, value) for name, value in zip(self.input_names, inputs, strict=True)]
        return [value.numpy() if isinstance(value, tf.Tensor) else value for value in self._call(values)]

    def _run(self, values: list[Any]) -> list[Any]:
        given = dict(zip(self.input_names, values, strict=True))
        net = self._built.build(from_paths(given, self._built.element_spec), False)
        missing = [name for name in self.output_names if name not in net]
        if missing:
            raise ModelError(f"the model has no output {', '.join(map(repr, missing))}; it has: {', '.join(net)}")
        return [net[name] for name in self.output_names]

    def _spec(self, name: str) -> Any:
        specs = self._built.element_spec
        if specs is not None and not has_path(specs, name):
            raise ModelError(f"there is no input {name!r}; a training batch has: {', '.join(by_path(specs))}")
        return None if specs is None else at_path(specs, name)

    def _convert(self, name: str, value: Any) -> Any:
        spec = self._specs[name]
        if not isinstance(spec, Mapping | tuple | list):
            return self._convert_one(name, spec, value)
        wanted = by_path(spec)
        missing = [path for path in wanted if not has_path(value, path)]
        if missing:
            raise ModelError(f"input {name!r} must have {', '.join(wanted)}; there is no {', '.join(missing)} in it")
        values = {
            f"it/{path}": self._convert_one(f"{name}/{path}", one, at_path(value, path)) for path, one in wanted.items()
        }
        return from_paths(values, {"it": spec}).get("it", {})

    def _convert_one(self, name: str, spec: Any, value: Any) -> Any:
        if not isinstance(spec, tf.TensorSpec) or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
            return value if spec is not None or isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
        tensor = (
            tf.cast(value, spec.dtype) if tf.is_tensor(value) else tf.convert_to_tensor(np.asarray(value), spec.dtype)
        )
        if tensor.shape.rank != spec.shape.rank or not tensor.shape[1:].is_compatible_with(spec.shape[1:]):
            expected = tf.TensorShape([None]).concatenate(spec.shape[1:]) if spec.shape.rank else spec.shape
            raise ModelError(f"input {name!r} must have shape {expected}, got {tensor.shape}")
        return tensor


def _names(names: Sequence[str], what: str) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{what} must be a list of names, such as ['images'], not {names!r}")
    return list(names)
