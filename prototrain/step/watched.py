"""What a watched step returns besides its scalars: tensors by name, and what the model gives to `tf.summary`.

A watched step does what a step of the long compiled call does, traced a second time, and is run only when a callback
wants to see that very step. In the long call `tf.summary` calls leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from prototrain.data.batches import at_path, by_path, has_path
from prototrain.errors import ModelError
from prototrain.private_api.runtime import default_writer, writing_through
from prototrain.step.python_summaries import SummaryFile
from prototrain.step.trace import ScalarSummary, tower_trace


@contextmanager
def recording(file: SummaryFile, step: tf.Tensor) -> Iterator[None]:
    """Let the `tf.summary` calls of a step that is traced in the block write to a file.

    Args:
        file: where to.
        step: the number of the step.
    """
    writer = file.writer
    with writer.as_default(step=step), tf.summary.record_if(True), writing_through(_keep_scalars(writer)):
        yield


def _keep_scalars(writer: tf.summary.SummaryWriter) -> Callable[..., Any]:
    """A function for `tf.summary.scalar` to call while a step is traced that writes to this writer.

    The value is kept for the mean over micro-batches and towers. In a branch, a loop or a `tf.function` inside the step
    there is no mean: the value of the first micro-batch of the first tower is written, as images are.
    """
    graph = tf.compat.v1.get_default_graph()

    def write(tag: str, tensor: Any, step: Any = None, metadata: Any = None, name: str | None = None) -> Any:
        trace = tower_trace()
        is_scalar = metadata is not None and metadata.plugin_data.plugin_name == "scalars"
        is_here = tf.compat.v1.get_default_graph() is graph and default_writer() is writer
        if trace is None or not (is_scalar and is_here):
            return tf.summary.write(tag, tensor, step=step, metadata=metadata, name=name)
        is_recorded = tf.summary.should_record_summaries()
        step = tf.summary.experimental.get_step() if step is None else step
        arguments = {"tag": tag, "step": step, "metadata": metadata}
        trace.summaries.append(ScalarSummary(tf.convert_to_tensor(tensor), is_recorded, arguments))
        return tf.constant(True)

    return write


def write_scalar(summary: ScalarSummary, value: tf.Tensor) -> None:
    """Write the mean of a summary over all micro-batches and towers; only the first tower really does."""
    with tf.summary.record_if(summary.is_recorded):
        tf.summary.write(tensor=value, **summary.arguments)


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
