"""What a traced model computes, as a digest: its ops, its outputs, and which variables and constants it uses where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.system.contents import LARGE, large_digest
from prototrain.system.graphs import short_digest, value_digest

_FORM = "v3 "
"""Ahead of a digest, since earlier versions saw less, or more."""


def model_digest(graph: Any, variables: Mapping[int, str] | None = None) -> str:
    """A digest of a traced function.

    Args:
        graph: of the function.
        variables: the names of those that it may use, by the ids of their handles.
    """
    names = variables or {}
    captured = {inside.op.name: _captured(outside, names) for outside, inside in graph.captures}
    return _FORM + value_digest(graph, captured)


def _captured(outside: Any, names: Mapping[int, str]) -> str:
    if id(outside) in names:
        return f" {names[id(outside)]}"
    if not hasattr(outside, "numpy") or outside.dtype in (tf.resource, tf.variant):
        return ""
    return f" {constant_digest(outside)}"


def constant_digest(tensor: Any) -> str:
    """A digest of what an eager tensor holds."""
    value = np.asarray(tensor.numpy())
    if value.nbytes > LARGE and not value.dtype.hasobject:
        return short_digest(f"{value.shape} {large_digest(value)}".encode())
    return short_digest(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())


def outputs_of(net: Any) -> list[Any]:
    """The tensors of the present graph that a model has given by name, in the order of their names."""
    if not isinstance(net, Mapping):
        return []
    graph = tf.compat.v1.get_default_graph()
    return [value for _, value in sorted(net.items()) if isinstance(value, tf.Tensor) and value.graph is graph]
