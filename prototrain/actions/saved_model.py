"""Export of a model to a SavedModel, and comparison of the export with the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.checkpoint.state import describe_variable
from prototrain.data.batches import at_path, by_path, from_paths, has_path
from prototrain.errors import ExperimentError, ModelError
from prototrain.model.built import BuiltModel
from prototrain.step.trace import compiled
from prototrain.system.files import require_literal
from prototrain.system.tracebacks import cause
from prototrain.tf_private import all_operations, owner

Tensors = dict[str, tf.Tensor]

DEFAULT = "serving_default"
"""The name of the default signature."""

_PYTHON = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
"""Operations that call a Python function of this process. They still work when the export is loaded in it."""


class ServedModel:
    """A model as an inference function of named tensors, for any number of examples.

    Args:
        built: the model with the weights to save.
        inputs: names or paths in a batch, or names in the mapping that `build` returns for a batch. The path
            ``user/age`` becomes the argument ``user_age``.
        outputs: names in the mapping that `build` returns, or for each signature a dict from output names to such
            names.

    Attributes:
        specs: the specifications of the inputs by name.
        cases: inputs from the training data with different numbers of examples, for the comparison.

    Raises:
        ModelError: the model has no such input or output, it is not a dense tensor, or `build` calls Python code.
    """

    def __init__(
        self, built: BuiltModel, inputs: Sequence[str], outputs: Sequence[str] | Mapping[str, Mapping[str, str]]
    ) -> None:
        self.built = built
        signatures = outputs if isinstance(outputs, Mapping) else {DEFAULT: {name: name for name in outputs}}
        self._paths, first = _real_inputs(built, inputs)
        spec = built.data.element_spec
        of_data = {name: at_path(spec, path) for name, path in self._paths.items() if has_path(spec, path)}
        specs = self.specs = {name: _free(name, of_data.get(name, value)) for name, value in first.items()}
        self._outputs = {f"{key}:{name}": net for key, names in signatures.items() for name, net in names.items()}
        # All signatures share one trace of the model.
        whole = tf.function(self._serve, autograph=False, input_signature=[specs])
        self._graph = whole.get_concrete_function().graph
        if any(operation.type in _PYTHON for operation in all_operations(self._graph)):
            raise ModelError("build() calls Python code (tf.py_function), which an export cannot contain")

        def only(start: str, inputs: Tensors) -> Tensors:
            return {name.removeprefix(start): one for name, one in whole(inputs).items() if name.startswith(start)}

        self._functions = {
            name: tf.function(partial(only, f"{name}:"), autograph=False, input_signature=[specs])
            for name in signatures
        }
        self.cases = _of_two_sizes(first)

    def _serve(self, inputs: Tensors) -> Tensors:
        given = {self._paths[name]: value for name, value in inputs.items()}
        batch = from_paths(given, self.built.data.element_spec)
        net = self.built.build(batch, False)
        if missing := [name for name in self._outputs.values() if name not in net]:
            raise ModelError(
                f"actions.export.outputs: from {', '.join(inputs)} the model makes no {', '.join(map(repr, missing))}; "
                f"it makes {', '.join(net)}"
            )
        return {key: _dense(f"actions.export.outputs: {name!r}", net[name]) for key, name in self._outputs.items()}

    def describe(self) -> dict[str, str]:
        """Return descriptions of the default signature's inputs and outputs."""
        outputs = self._functions[DEFAULT].get_concrete_function().structured_outputs
        sides = {"inputs": self.specs, "outputs": outputs}
        return {
            side: ", ".join(f"{name} {describe_variable(tensor)}" for name, tensor in tensors.items())
            for side, tensors in sides.items()
        }

    def results(self) -> list[Tensors]:
        """Return the model's outputs for the cases, named ``<signature>:<output>``."""
        return list(map(compiled(self._serve), self.cases))

    def save(self, directory: Path) -> None:
        """Write a SavedModel with the model's signatures."""
        module = tf.Module()
        module.model_variables = list(self._graph.variables)
        captured = [owner(outside) for outside, _ in self._graph.captures]  # such as lookup tables
        module.resources = [one for one in captured if isinstance(one, tf.saved_model.experimental.TrackableResource)]
        try:
            tf.saved_model.save(module, str(directory), signatures=self._functions)
        except (AssertionError, ValueError) as error:
            raise ModelError(f"TensorFlow cannot save the model: {cause(error)}") from error
        except tf.errors.OpError as error:
            raise ExperimentError(f"cannot write {directory}: {cause(error)}") from error


def compare(served: ServedModel, directory: Path) -> str:
    """Load and run an export, compare it with the model, and describe the outcome."""
    is_mixed = served.built.config["model.mixed_precision"] is not None
    largest = 0.0
    for expected, found in zip(served.results(), _run_export(directory, served.cases), strict=True):
        for name, value in expected.items():
            difference = _difference(value.numpy(), found[name])
            # Devices and fused operations may round.
            if not difference <= (2e-2 if is_mixed or value.dtype.size == 2 else 1e-4):
                shown = name.removeprefix(f"{DEFAULT}:")
                raise ModelError(
                    f"what was exported is not the model: {shown!r} differs by {difference:.2g} of its largest value; "
                    "does build() depend on more than its inputs, such as random numbers or a variable that it changes?"
                )
            largest = max(largest, difference)
    sizes = " and ".join(str(_examples(case)) for case in served.cases)
    how = f"differences up to {largest:.2g} of the largest value" if largest else "to the same bits"
    return f"on {sizes} examples, {how}"


def _run_export(directory: Path, cases: list[Tensors]) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Load an export, and return its outputs for each case, named ``<signature>:<output>``."""
    path = require_literal(directory)
    with tf.device("CPU:0"):  # the GPU may have no room for a second copy
        try:
            signatures = tf.saved_model.load(path).signatures.items()
            found = [{key: run(**case) for key, run in signatures} for case in cases]
        except (ValueError, TypeError, KeyError, OSError, tf.errors.OpError) as error:
            raise ModelError(f"what was exported does not run: {cause(error)}") from error
    return [
        {f"{key}:{name}": value.numpy() for key, outputs in case.items() for name, value in outputs.items()}
        for case in found
    ]


def _difference(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    """Return the largest difference relative to the largest value; infinite if it cannot be measured so."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return math.inf
    if not tf.as_dtype(expected.dtype).is_floating:
        return 0.0 if np.array_equal(expected, found) else math.inf
    one, two = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(one[~finite], two[~finite], equal_nan=True):
        return math.inf
    largest = max(float(np.max(np.abs(one[finite]), initial=0.0)), 1e-6)
    return float(np.max(np.abs(one[finite] - two[finite]), initial=0.0)) / largest


def _real_inputs(built: BuiltModel, paths: Sequence[str]) -> tuple[dict[str, str], Tensors]:
    """Return the paths of the inputs, and values from the first training batch or `build`, both by argument name."""
    batch = built.data.first_batch
    net = batch if all(has_path(batch, path) for path in paths) else {**built.build(batch, False), **batch}
    if missing := [path for path in paths if not has_path(net, path)]:
        raise ModelError(
            f"actions.export.inputs: there is no {', '.join(map(repr, missing))}; a batch and the model's mapping have "
            f"{', '.join(by_path(net))}"
        )
    names = {path if path in net else path.replace("/", "_"): path for path in paths}
    for name in names:
        if not name.isidentifier():
            raise ModelError(f"actions.export.inputs: {name!r} cannot be an argument; use letters, digits and _")
    return names, {name: _dense(f"actions.export.inputs: {path!r}", at_path(net, path)) for name, path in names.items()}


def _dense(what: str, value: Any) -> tf.Tensor:
    if not isinstance(value, (tf.Tensor, tf.Variable)):
        raise ModelError(f"{what} is a {type(value).__name__}; only dense tensors can be exported")
    return tf.convert_to_tensor(value)


def _free(name: str, like: Any) -> tf.TensorSpec:
    """Return the specification of an input with an unknown number of examples, if it is not a scalar."""
    shape = tf.TensorShape([None]).concatenate(like.shape[1:]) if like.shape.rank else like.shape
    return tf.TensorSpec(shape, like.dtype, name=name)


def _of_two_sizes(inputs: Tensors) -> list[Tensors]:
    """Return the inputs, and a second case with one example, or with two if the inputs have one."""
    several = _examples(inputs) > 1

    def other(value: tf.Tensor) -> tf.Tensor:
        return value if value.shape.rank == 0 else value[:1] if several else tf.concat([value, value], 0)

    return [inputs, {name: other(value) for name, value in inputs.items()}] if _examples(inputs) else [inputs]


def _examples(inputs: Tensors) -> int:
    """Return the number of examples; 0 if all inputs are scalars."""
    return max((int(value.shape[0]) for value in inputs.values() if value.shape.rank), default=0)
