"""Numbers about tensors of a step and about variables: how they are distributed, and how large they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.callbacks.profiling.tensors import ProcessTensors
from prototrain.errors import CallbackError

KINDS = ("scalar", "histogram", "sparsity", "mean", "rms")


class TensorSummary(ProcessTensors):
    """Records numbers about tensors of the last step, whenever triggered.

    "mean", "rms" (the root mean square) and "sparsity" (the share of zeros) are scalars called ``trn/<tensor>-<kind>``,
    "scalar" is the tensor itself, and "histogram" is for `TensorBoardWriter`.

    Args:
        names: of tensors in the model's mapping or in the batch.
        kinds: which of these.
        prefix: what the names start with.

    Raises:
        CallbackError: there is no such kind; while training, if there is no such tensor.
    """

    def __init__(self, names: str | Sequence[str], kinds: str | Sequence[str], *, prefix: str = "trn") -> None:
        super().__init__(names)
        self.kinds = _checked(type(self).__name__, kinds)
        self.prefix = prefix

    def setup(self) -> None:
        self.trainer.monitors.announce(self, self.prefix)

    def process(self, *arrays: np.ndarray[Any, Any]) -> None:
        for name, array in zip(self.names, arrays, strict=True):
            record(self, f"{self.prefix}/{name}", array, self.kinds)


class ActivationSummary(TensorSummary):
    """Records how a layer's outputs in the last step are distributed, whenever triggered.

    Args:
        names: of tensors in the model's mapping.
        kinds: as for `TensorSummary`.
        prefix: what the names start with.

    Raises:
        CallbackError: as for `TensorSummary`; while training also, if a tensor has fewer than two dimensions.
    """

    def __init__(
        self,
        names: str | Sequence[str],
        kinds: str | Sequence[str] = ("sparsity", "rms", "histogram"),
        *,
        prefix: str = "trn/activation-summary",
    ) -> None:
        super().__init__(names, kinds, prefix=prefix)

    def process(self, *arrays: np.ndarray[Any, Any]) -> None:
        for name, array in zip(self.names, arrays, strict=True):
            if array.ndim < 2:
                raise CallbackError(f"ActivationSummary: {name!r} has shape {list(array.shape)}; use TensorSummary")
        super().process(*arrays)


class ParamSummary(Callback):
    """Records numbers about trained variables, whenever triggered, called ``param-summary/<variable>-<kind>``.

        ParamSummary((".*/kernel", ["histogram", "rms"]), (".*/gamma", "mean"))

    Args:
        choices: pairs of a regular expression for whole names of variables, and of kinds as for `TensorSummary`.
        prefix: what the names start with.

    Raises:
        CallbackError: there is no such kind, or an argument is no such pair; at setup, if a regular expression matches
            no trained variable.
    """

    def __init__(self, *choices: tuple[str, str | Sequence[str]], prefix: str = "param-summary") -> None:
        if not choices or not all(isinstance(choice, tuple) and len(choice) == 2 for choice in choices):
            raise CallbackError(
                "ParamSummary takes pairs such as ('.*/kernel', ['histogram', 'rms']), with a pattern for the variables"
            )
        self.choices = [(pattern, _checked("ParamSummary", kinds)) for pattern, kinds in choices]
        self.prefix = prefix

    def setup(self) -> None:
        self.trainer.monitors.announce(self, self.prefix)
        self._variables = [
            (name, variable, kinds)
            for pattern, kinds in self.choices
            for name, variable in matching(self.name, self.trainer.trained_variables, pattern).items()
        ]

    def trigger(self) -> None:
        for name, variable, kinds in self._variables:
            record(self, f"{self.prefix}/{name}", np.asarray(tf.convert_to_tensor(variable)), kinds)


def matching(who: str, variables: dict[str, Any], pattern: str) -> dict[str, Any]:
    """The variables whose whole names a regular expression matches.

    Raises:
        CallbackError: it is none, or there are none; `who` asked for them.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise CallbackError(f"{who}: {pattern!r} is not a regular expression: {error}") from error
    found = {name: variable for name, variable in variables.items() if compiled.fullmatch(name)}
    if not found:
        raise CallbackError(
            f"{who}: {pattern!r} is the whole name of no trained variable; there are: {', '.join(variables)}"
        )
    return found


def record(callback: Callback, name: str, array: np.ndarray[Any, Any], kinds: Sequence[str]) -> None:
    """Give a callback's monitors what is asked for of an array."""
    monitors = callback.trainer.monitors
    numbers = array.astype(np.float64)
    for kind in kinds:
        match kind:
            case "scalar":
                monitors.put_scalar(name, array)
            case "histogram":
                monitors.put_histogram(f"{name}-histogram", numbers)
            case "sparsity":
                monitors.put_scalar(f"{name}-sparsity", np.mean(numbers == 0))
            case "mean":
                monitors.put_scalar(f"{name}-mean", np.mean(numbers))
            case "rms":
                monitors.put_scalar(f"{name}-rms", np.sqrt(np.mean(np.square(numbers))))


def _checked(who: str, kinds: str | Sequence[str]) -> list[str]:
    given = [kinds] if isinstance(kinds, str) else list(kinds)
    if wrong := [kind for kind in given if kind not in KINDS] or ([] if given else ["nothing"]):
        raise CallbackError(f"{who}: there is no {wrong[0]!r}; there are {', '.join(KINDS)}")
    return given
