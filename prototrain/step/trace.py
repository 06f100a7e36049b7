"""Values that the trace of one tower's step collects in addition to the scalars of `train_step`.

A watched step does what a step of the long compiled call does, traced a second time, and is run only when a callback
wants to see that very step: tensors by name, and what the model gives to `tf.summary`. In the long call `tf.summary`
calls leave nothing behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.data.batches import at_path, by_path, has_path
from prototrain.errors import ModelError
from prototrain.step.arithmetic import share_of_tower, weighted
from prototrain.tf_private import default_writer, writing_through

if TYPE_CHECKING:
    from prototrain.step.nonfinite import NoCheck

OF_ALL_TOWERS = frozenset({"learning_rate", "loss_scale"})
"""Scalars of a step that do not depend on the batch."""


@dataclass(frozen=True)
class ScalarSummary:
    """A call of `tf.summary.scalar` in a watched step.

    Attributes:
        value: a float32 scalar.
        record: records the mean of such values over all micro-batches and towers.
    """

    value: tf.Tensor
    record: Callable[[tf.Tensor], None]


@dataclass
class TowerTrace:
    """The step of one tower while it is traced; `tower_trace` finds it.

    Attributes:
        guard: what its updates go through.
        is_watched: whether more is seen of this step than its scalars.
        nets: what `build` returned, for each micro-batch of a watched step.
        weight: the "loss_weight" of the last `build`, as long as it applies to what follows.
        summaries: calls of `tf.summary.scalar` in a watched step.
        scalars: those to be reported in addition to those that `train_step` returns.
        applied: for each guarded update whether everything was finite, the same in all towers.
        graph: the graph that the step is traced into; a branch of a `tf.cond` has another one.
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

    def weighted(self, values: Sequence[Any], placement: Any) -> list[Any]:
        """Multiply what the weight of this tower applies to, see `share_of_tower`; traced."""
        if self.weight is None:
            return list(values)
        share = share_of_tower(self.weight, placement)
        return [weighted(value, share) for value in values]

    def set_summaries(self, values: Sequence[tf.Tensor]) -> None:
        """Give each summary another value."""
        self.summaries = [replace(one, value=value) for one, value in zip(self.summaries, values, strict=True)]

    def weighted_outputs(self, outputs: Mapping[str, Any], placement: Any) -> dict[str, Any]:
        """The scalars that a `train_step` returned, as `weighted` does; the summaries too."""
        self.set_summaries(self.weighted([one.value for one in self.summaries], placement))
        names = [name for name in outputs if name not in OF_ALL_TOWERS]
        values = self.weighted([outputs[name] for name in names], placement)
        return {**outputs, **dict(zip(names, values, strict=True))}

    def finite(self) -> tf.Tensor:
        """Whether all guarded updates found everything finite."""
        return tf.reduce_all(tf.stack(self.applied)) if self.applied else tf.constant(True)


_tracing = threading.local()  # each tower is traced in its own thread


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


@contextmanager
def recording(writer: tf.summary.SummaryWriter, step: tf.Tensor) -> Iterator[None]:
    """Let a step that is traced in the block record its `tf.summary` calls.

    Scalars are kept for their mean over micro-batches and towers. In a branch, a loop or a `tf.function` inside the
    step there is no mean: the value of the first micro-batch of the first tower is recorded, as of images.

    Args:
        writer: where to.
        step: the number of the step.
    """

    def write(tag: str, tensor: Any, step: Any = None, metadata: Any = None, name: str | None = None) -> Any:
        trace = tower_trace()
        is_scalar = metadata is not None and metadata.plugin_data.plugin_name == "scalars"
        is_here = trace is not None and tf.compat.v1.get_default_graph() is trace.graph and default_writer() is writer
        if trace is None or not (is_scalar and is_here):
            return tf.summary.write(tag, tensor, step=step, metadata=metadata, name=name)
        is_recorded = tf.summary.should_record_summaries()
        step = tf.summary.experimental.get_step() if step is None else step

        def record(mean: tf.Tensor) -> None:
            with tf.summary.record_if(is_recorded):  # the first tower only
                tf.summary.write(tag, mean, step=step, metadata=metadata)

        trace.summaries.append(ScalarSummary(tensor, record))
        return tf.constant(True)

    with writer.as_default(step=step), tf.summary.record_if(True), writing_through(write):
        yield


def pick(names: Collection[str], nets: Sequence[Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Find tensors of one tower by name, joined over its micro-batches.

    Args:
        names: in the model's mapping or in the batch, or paths there.
        nets: what `build` returned, for each micro-batch.
        inputs: the tower's batch.

    Raises:
        ModelError: there is no such tensor.
    """
    found = {}
    for name in sorted(names):
        values = [at_path(net, name) for net in nets if has_path(net, name)]
        values = values or ([at_path(inputs, name)] if has_path(inputs, name) else [])
        if not values or any(isinstance(value, Mapping) for value in values):
            known = ", ".join(dict.fromkeys([*by_path(inputs), *(key for net in nets for key in net)]))
            raise ModelError(f"there is no tensor {name!r} in the step; there are: {known}")
        found[name] = join([tf.convert_to_tensor(value) for value in values])
    return found


def join(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Put the parts of a tensor together again: scalars are averaged, all else stands one after the other."""
    if len(parts) == 1:
        return parts[0]
    return tf.concat(parts, 0) if parts[0].shape.rank else tf.reduce_mean(tf.stack(parts), 0)
