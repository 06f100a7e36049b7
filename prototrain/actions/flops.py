"""What a model computes, counted in its graph.

Counted are the multiplications and additions of matrix products and convolutions; everything else is small beside them,
and left out. TensorFlow's own profiler counts nothing inside of functions and loops, and no einsum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prototrain.system.graphs import called, needed

_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
_HEAVY = re.compile(r"MatMul|Conv(?!ert)|Einsum|RNN|LSTM|GRU|FFT|Cholesky|Svd|^Qr$|MatrixSolve|MatrixInverse")


class _NoFixedShapeError(Exception):
    pass


@dataclass(frozen=True)
class Flops:
    """A count.

    Attributes:
        number: multiplications and additions.
        uncounted: what there is besides, in words.
    """

    number: int
    uncounted: list[str]


def count_flops(graph: Any) -> Flops:
    """Count what a graph's outputs need, for the shapes that it was traced with."""
    number = 0
    uncounted: list[str] = []
    for op in needed(graph):
        inside = [count_flops(function) for function in called(op)]
        numbers = [part.number for part in inside]
        number += max(numbers, default=0) if op.type in _BRANCHES else sum(numbers)
        uncounted += [line for part in inside for line in part.uncounted]
        if op.type in _LOOPS and any(numbers):
            uncounted.append(f"more than one round of the loop {op.name}")
        try:
            number += _COUNTS[op.type](op) if op.type in _COUNTS else 0
        except _NoFixedShapeError:
            uncounted.append(f"{op.name} ({op.type}), whose shape is not fixed")
        if op.type not in _COUNTS and _HEAVY.search(op.type):
            uncounted.append(f"{op.name} ({op.type})")
    return Flops(number, list(dict.fromkeys(uncounted)))


def _shape(tensor: Any) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise _NoFixedShapeError
    return list(tensor.shape)


def _matrix_product(op: Any) -> int:
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return 2 * math.prod(_shape(op.outputs[0])) * _shape(op.inputs[0])[-2 if transposed else -1]


def _convolution(op: Any) -> int:
    *window, _ = _shape(op.inputs[1])  # height, width, channels of the input (of a group), channels of the output
    return 2 * math.prod(_shape(op.outputs[0])) * math.prod(window)


def _depthwise_convolution(op: Any) -> int:
    height, width, *_ = _shape(op.inputs[1])
    return 2 * math.prod(_shape(op.outputs[0])) * height * width


def _transposed_convolution(op: Any) -> int:
    *window, _ = _shape(op.inputs[1])
    return 2 * math.prod(_shape(op.inputs[2])) * math.prod(window)


def _einsum(op: Any) -> int:
    terms, _, result = op.get_attr("equation").decode().partition("->")
    sizes: dict[str, int] = {}
    for labels, tensor in zip([*terms.split(","), result], [*op.inputs, op.outputs[0]], strict=True):
        shape = _shape(tensor)
        first, dots, last = labels.partition("...")
        rest = len(shape) - len(last)
        named = [*zip(first, shape[: len(first)], strict=True), *zip(last, shape[rest:], strict=True)]
        for label, size in [*named, (dots, math.prod(shape[len(first) : rest]))]:
            sizes[label] = max(sizes.get(label, 1), size)
    return 2 * math.prod(sizes.values()) if len(op.inputs) == 2 else 0


_COUNTS: dict[str, Callable[[Any], int]] = {
    "MatMul": _matrix_product,
    "BatchMatMul": _matrix_product,
    "BatchMatMulV2": _matrix_product,
    "BatchMatMulV3": _matrix_product,
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "DepthwiseConv2dNative": _depthwise_convolution,
    "Conv2DBackpropInput": _transposed_convolution,
    "Conv3DBackpropInputV2": _transposed_convolution,
    "Einsum": _einsum,
}
