"""Values that tracing one tower's step collects in addition to the scalars of `train_step`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from prototrain.step.nonfinite import NoCheck


@dataclass(frozen=True)
class ScalarSummary:
    """A call of `tf.summary.scalar` in a watched step.

    Attributes:
        value: the value, a float32 scalar.
        record: records the mean of the value over all micro-batches and towers.
    """

    value: tf.Tensor
    record: Callable[[tf.Tensor], None]


@dataclass
class TowerTrace:
    """One tower's step while it is traced; see `tower_trace`.

    Attributes:
        guard: checks the updates of the step.
        is_watched: whether the step returns more than its scalars.
        nets: tensors that `build` returned for each micro-batch of a watched step.
        weight: the "loss_weight" of the last `build`, until it has been applied.
        summaries: calls of `tf.summary.scalar` in a watched step.
        scalars: scalars to report in addition to those that `train_step` returns.
        applied: for each guarded update, whether all values were finite; the same in all towers.
        graph: the graph of the step; a branch of a `tf.cond` has another one.
    """

    guard: NoCheck
    is_watched: bool
    nets: list[Mapping[str, Any]] = field(default_factory=list)
    weight: tf.Tensor | None = None
    summaries: list[ScalarSummary] = field(default_factory=list)
    scalars: dict[str, tf.Tensor] = field(default_factory=dict)
    applied: list[tf.Tensor] = field(default_factory=list)
    graph: Any = field(default_factory=tf.compat.v1.get_default_graph)

    def add_net(self, net: Mapping[str, Any]) -> None:
        """Store the tensors that `build` returned, if the step is watched."""
        if self.is_watched:
            self.nets.append(net)

    def add_scalar(self, name: str, value: tf.Tensor) -> None:
        """Report a scalar; a number is appended to a name that exists."""
        unique, number = name, 1
        while unique in self.scalars:
            number += 1
            unique = f"{name}_{number}"
        self.scalars[unique] = value


_tracing = threading.local()  # each tower is traced in its own thread


def tower_trace() -> TowerTrace | None:
    """Return the tower's step that this thread is tracing, or None outside of a compiled step."""
    found: TowerTrace | None = getattr(_tracing, "trace", None)
    return found


@contextmanager
def tracing(trace: TowerTrace) -> Iterator[None]:
    """Context manager in which `tower_trace` returns this trace."""
    outer = tower_trace()
    _tracing.trace = trace
    try:
        yield
    finally:
        _tracing.trace = outer
