"""The state of TensorFlow in this process: random seeds, variables and tables, summary writers, workers."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import tensorflow as tf

from prototrain.private_api import private

_INTERNAL = 13  # the error code


def _context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


# -- random seeds -----------------------------------------------------------------------------------------------------


@private
def tensorflow_seed() -> int | None:
    """The last seed of `tf.random.set_seed`, or None."""
    found: int | None = _context()._seed
    return found


@private
def set_tensorflow_seed(seed: int | None) -> None:
    """Like `tf.random.set_seed`, but also takes None."""
    _context()._set_global_seed(seed)


def drawing_seeds() -> random.Random | None:
    """The generator of the seeds of eager random ops; None before `tf.random.set_seed`."""
    return getattr(_context(), "_rng", None)


# -- determinism -----------------------------------------------------------------------------------------------------


@private
def is_deterministic() -> bool:
    """Whether ops without a deterministic form fail, after `tf.config.experimental.enable_op_determinism()`."""
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


# -- variables and tables ---------------------------------------------------------------------------------------------


@private
def tell_of_uses(use: Callable[[Any], None]) -> None:
    """Call a function before each use of a variable, from now on and in all threads.

    Every use from Python reads the property `handle`; `raw_handle` does not.

    Args:
        use: called with the variable.
    """
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

    original: Any = BaseResourceVariable.handle

    def handle(self: Any) -> Any:
        use(self)
        return original.fget(self)

    BaseResourceVariable.handle = property(handle, doc=original.__doc__)


def raw_handle(variable: Any) -> Any:
    """A variable's handle, without a call of the function of `tell_of_uses`."""
    return variable._handle


def owner(handle: Any) -> Any:
    """The object of a resource, such as a lookup table; None if it no longer exists."""
    reference = getattr(handle, "_parent_trackable", None)
    return None if reference is None else reference()


# -- summaries and profiles -------------------------------------------------------------------------------------------


class ChangingWriter(tf.summary.SummaryWriter):  # type: ignore[misc]
    """A summary writer that forwards each `tf.summary` call to the writer of `present`."""

    @abstractmethod
    def present(self) -> tf.summary.SummaryWriter:
        """The writer to use now."""

    @property
    def _resource(self) -> Any:
        return self.present()._resource

    def init(self) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing: the other writer is flushed."""

    def close(self) -> None:
        """Do nothing."""


@private
def default_writer() -> Any:
    """The current summary writer of this thread, or None."""
    from tensorflow.python.ops import summary_ops_v2

    return summary_ops_v2._summary_state.writer


@contextmanager
def writing_through(write: Callable[..., Any]) -> Iterator[None]:
    """Let `tf.summary.scalar` and the like call `write` meanwhile."""
    from tensorboard.compat import tf2

    summary = tf2.summary
    original, summary.write = summary.write, write
    try:
        yield
    finally:
        summary.write = original


# -- workers ----------------------------------------------------------------------------------------------------------


@private
def set_patience(*, leader: str, jobs: Sequence[tuple[str, int]], connected_ms: int, silence_ms: int) -> None:
    """Set how long TensorFlow's coordination service waits for workers; before they connect.

    Args:
        leader: the task with the service, such as ``/job:worker/replica:0/task:0``.
        jobs: the kinds of tasks, each with their number.
        connected_ms: the limit until all are connected.
        silence_ms: the limit between two heartbeats.
    """
    from tensorflow.python.eager import context

    job = context.coordination_config_pb2.CoordinatedJob  # its module differs between versions
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=leader,
        heartbeat_timeout_in_ms=silence_ms,
        cluster_register_timeout_in_ms=connected_ms,
        coordinated_jobs=[job(name=name, num_tasks=number) for name, number in jobs],
    )


@private
def report_to_cluster(why: str) -> None:
    """Make every collective operation of all connected workers fail with a text, from now on."""
    if has_started():
        with suppress(ValueError, tf.errors.OpError):  # not connected, or no longer
            _context().report_error_to_cluster(_INTERNAL, why)


@private
def has_started() -> bool:
    """Whether TensorFlow has made its devices, without a start of TensorFlow."""
    return bool(_context()._initialized)


@private
def is_ready(result: Any) -> bool:
    """Whether `get` of a result that a coordinator has scheduled returns at once."""
    from tensorflow.python.distribute.coordinator.remote_value import RemoteValueStatus

    return result._status is not RemoteValueStatus.NOT_READY
