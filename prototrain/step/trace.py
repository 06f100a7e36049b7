"""What one tower leaves behind while its step is traced, besides what `train_step` returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from prototrain.step.guard import Guard


@dataclass
class TowerTrace:
    """The step of one tower while it is traced; `tower_trace` finds it.

    Attributes:
        guard: what its updates go through.
        is_watched: whether more is seen of this step than its scalars.
        nets: what `build` returned, for each micro-batch of a watched step.
        scalars: those to be reported besides the ones that `train_step` returns.
        applied: for each guarded update whether everything was finite, the same in all towers.
        graph: the graph that the step is traced into; a branch of a `tf.cond` has another one.
    """

    guard: Guard
    is_watched: bool
    nets: list[Mapping[str, Any]] = field(default_factory=list)
    scalars: dict[str, tf.Tensor] = field(default_factory=dict)
    applied: list[tf.Tensor] = field(default_factory=list)
    graph: Any = field(default_factory=tf.compat.v1.get_default_graph)

    def add_net(self, net: Mapping[str, Any]) -> None:
        """Take note of what `build` returned, for those who watch this step."""
        if self.is_watched:
            self.nets.append(net)

    def add_scalar(self, name: str, value: tf.Tensor) -> None:
        """Report a scalar; a number is added to a name that is taken."""
        unique, number = name, 1
        while unique in self.scalars:
            number += 1
            unique = f"{name}_{number}"
        self.scalars[unique] = value

    def finite(self) -> tf.Tensor:
        """Whether all guarded updates found everything finite."""
        return tf.reduce_all(tf.stack(self.applied)) if self.applied else tf.constant(True)


_tracing = threading.local()  # towers are traced in threads of their own


def tower_trace() -> TowerTrace | None:
    """The tower's step that is being traced in this thread, or None outside of a compiled step."""
    found: TowerTrace | None = getattr(_tracing, "trace", None)
    return found


@contextmanager
def tracing(trace: TowerTrace) -> Iterator[None]:
    """Let `tower_trace` find this one."""
    outer = tower_trace()
    _tracing.trace = trace
    try:
        yield
    finally:
        _tracing.trace = outer
