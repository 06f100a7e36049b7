"""The result of a compiled call, and the scalars on their way to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError, PrototrainError

_NODE = re.compile(r"\[\[(?:\{\{function_node [^}]*\}\})?(?:\{\{node )?([^\]}]*)")

_EMPTY_ELEMENT = "components but got"
"""Part of TensorFlow's message for a dataset element that does not have the structure its stage declares."""


@dataclass(kw_only=True, slots=True)
class StepResult:
    """What a call of many steps did.

    Attributes:
        steps: the number of completed steps.
        outputs: the last step's scalars by name; those of the failed step if `is_finite` is False.
        is_finite: False if the call ended at a non-finite step, whose update was not applied.
        data_ended: whether the call reached the end of the data.
        watched: tensors of the last step by name, if it was a watched one.
        summary_events: TensorBoard events of `tf.summary` calls in the last step, if it was a watched one.
        waiting: seconds spent waiting for batches.
        tracing: seconds of a first call, which are mostly tracing.
        error: why the step after the completed ones failed, or None.
        is_whole: whether the variables are those of the last completed step.
    """

    steps: int
    outputs: Mapping[str, float] = field(default_factory=dict)
    is_finite: bool = True
    data_ended: bool = False
    watched: Mapping[str, Any] = field(default_factory=dict)
    summary_events: Sequence[Any] = ()
    waiting: float = 0.0
    tracing: float = 0.0
    error: PrototrainError | None = None
    is_whole: bool = True


class ScalarPacker:
    """Packs a dict of scalars into two vectors, so that one copy brings all of them to the host.

    float32 values stay float32; all others become float64.
    """

    def __init__(self) -> None:
        self._names: tuple[list[str], list[str]] = ([], [])

    @property
    def names(self) -> list[str]:
        """The names of the scalars, once they have been packed."""
        single, double = self._names
        return [*single, *double]

    def pack(self, outputs: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a float32 and a float64 vector; traced.

        Raises:
            ModelError: an output is not a scalar.
        """
        single: dict[str, tf.Tensor] = {}
        double: dict[str, tf.Tensor] = {}
        for name, value in outputs.items():
            tensor = tf.convert_to_tensor(value)
            if tensor.shape.rank != 0:
                raise ModelError(f"a step's outputs must be scalars; {name!r} has shape {tensor.shape}")
            if tensor.dtype == tf.float32:
                single[name] = tensor
            else:
                double[name] = tf.cast(tensor, tf.float64)
        self._names = (list(single), list(double))
        return _stack(single, tf.float32), _stack(double, tf.float64)

    def unstack(self, vectors: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the scalars of packed vectors as tensors; traced."""
        pairs = zip(self._names, vectors, strict=True)
        return {name: value for names, vector in pairs for name, value in zip(names, tf.unstack(vector), strict=True)}

    def unpack(self, vectors: tuple[tf.Tensor, tf.Tensor]) -> dict[str, float]:
        """Copy the scalars of packed vectors to the host."""
        found: dict[str, float] = {}
        for names, vector in zip(self._names, vectors, strict=True):
            if names:
                found.update(zip(names, vector.numpy().tolist(), strict=True))
        return found


def failed_stage(error: tf.errors.OpError) -> str:
    """The part of an iteration that raised a TensorFlow error: "data" or "model".

    The message ends with the op that failed and, if it failed inside another one, with that one: a dataset's ops fail
    inside the op that reads the iterator.
    """
    text = str(error.message)
    if _EMPTY_ELEMENT in text:
        return "data"
    nodes = _NODE.findall(text)
    outermost = text.rpartition("[Op:")[2] if "[Op:Iterator" in text else nodes[-1] if nodes else ""
    return "data" if "IteratorGetNext" in outermost else "model"


def _stack(values: dict[str, tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    return tf.stack(list(values.values())) if values else tf.zeros([0], dtype)
