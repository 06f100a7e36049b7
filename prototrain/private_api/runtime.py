"""What TensorFlow keeps for a process: random seeds, variables and tables, summary writers, connected workers."""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import tensorflow as tf

from prototrain.private_api.needs import needs

_CONTEXT = "tensorflow.python.eager.context:Context"
_LOOKUP = "tensorflow.python.ops.lookup_ops"
_INTERNAL = 13  # the error code
_OF_FILE = ("_filename_arg", "_key_index", "_value_index", "_vocab_size", "_delimiter", "_offset")


def _context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


# -- random seeds -----------------------------------------------------------------------------------------------------


@needs(
    f"{_CONTEXT}._seed",
    f"{_CONTEXT}._set_global_seed",
    without="random ops without a seed are not the same in a run that is made again",
    instead=lambda: 0,
)
def tensorflow_seed() -> int | None:
    """What `tf.random.set_seed` was last called with, or None. It relies on `_seed`."""
    found: int | None = _context()._seed
    return found


@needs(
    f"{_CONTEXT}._seed",
    f"{_CONTEXT}._set_global_seed",
    without="building a model may change what random ops draw after it",
    instead=lambda seed: None,
)
def set_tensorflow_seed(seed: int | None) -> None:
    """As `tf.random.set_seed`, which does not take the None that was there before."""
    _context()._set_global_seed(seed)


@needs(
    f"{_CONTEXT}._rng",
    without="building a model may change what random ops draw after it",
    instead=lambda: None,
)
def drawing_seeds() -> random.Random | None:
    """The generator that eager random ops draw their seeds from; None before there is one. It relies on `_rng`."""
    return getattr(_context(), "_rng", None)


# -- determinism -----------------------------------------------------------------------------------------------------


def _tells_no_time() -> bool:
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return True
    return False


@needs(
    "tensorflow.python.framework.config:is_op_determinism_enabled",
    without="whether tf.config.experimental.enable_op_determinism() is on shows only in a warning of TensorFlow's",
    instead=_tells_no_time,
)
def is_deterministic() -> bool:
    """Whether ops without a deterministic form fail, after `tf.config.experimental.enable_op_determinism()`."""
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


# -- variables and tables ---------------------------------------------------------------------------------------------


def _no_variables(use: Callable[[Any], None]) -> None:
    """Nobody hears of a variable."""


@needs(
    "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable.handle",
    "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable._handle",
    without="what building and trying out a model changes in variables of its own is not put back",
    instead=_no_variables,
)
def tell_of_uses(use: Callable[[Any], None]) -> None:
    """Have each variable told of before it is used, from now on and in all threads.

    It relies on whatever uses a variable from Python asking it for its `handle`, a property that two classes of
    variables have from one base, and on `raw_handle` not leading there.

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
    """A variable's handle without its use being told of; what an assignment returns has the same one."""
    return variable._handle


@needs(
    f"{_LOOKUP}:KeyValueTensorInitializer._keys",
    f"{_LOOKUP}:KeyValueTensorInitializer._values",
    *(f"{_LOOKUP}:TextFileInitializer.{name}" for name in _OF_FILE),
    f"{_LOOKUP}:StaticHashTable._table_name",
    without="a lookup table that build() makes is made once for each call of it",
    instead=lambda initializer: None,
)
def table_contents(initializer: Any) -> str | None:
    """A text that is the same for two lookup tables with the same contents, or None if these are not known now.

    It relies on what the two initializers call what they were given.
    """
    if type(initializer) is tf.lookup.KeyValueTensorInitializer:
        given = [tf.get_static_value(part) for part in (initializer._keys, initializer._values)]
        if any(part is None for part in given):
            return None
        return hashlib.sha256(repr([(part.dtype.str, part.tolist()) for part in given]).encode()).hexdigest()
    if type(initializer) is tf.lookup.TextFileInitializer:
        return str([repr(getattr(initializer, name, None)) for name in _OF_FILE])
    return None


def is_table_made(table: Any) -> bool:
    """Whether a `StaticHashTable` has been initialised, which gives it `_table_name`."""
    return "_table_name" in vars(table)


@needs(
    "tensorflow.python.trackable.resource:TrackableResource._resource_handle",
    without="a model with a lookup table cannot be exported",
    instead=lambda handle: None,
)
def owner(handle: Any) -> Any:
    """The object that stands for a resource, such as a lookup table; None if nobody has it any more.

    It relies on `_resource_handle` being set with a weak reference to its owner, `_parent_trackable`.
    """
    reference = getattr(handle, "_parent_trackable", None)
    return None if reference is None else reference()


# -- summaries and profiles -------------------------------------------------------------------------------------------


class ChangingWriter(tf.summary.SummaryWriter):  # type: ignore[misc]
    """A summary writer that is another one for each `tf.summary` call.

    It relies on TensorFlow asking the writer in force for its `_resource` each time.
    """

    @abstractmethod
    def present(self) -> tf.summary.SummaryWriter:
        """The writer that is meant now."""

    @property
    def _resource(self) -> Any:
        return self.present()._resource

    def init(self) -> None:
        """Nothing to begin."""

    def flush(self) -> None:
        """Whoever takes the events does that."""

    def close(self) -> None:
        """Nothing is open."""


@needs(
    "tensorflow.python.ops.summary_ops_v2:_ResourceSummaryWriter._resource",
    without="tf.summary calls outside of a compiled step are not recorded",
    instead=lambda: False,
)
def can_change_writers() -> bool:
    """Whether a `ChangingWriter` is asked."""
    return True


@needs(
    "tensorflow.python.ops.summary_ops_v2:_SummaryState.writer",
    "tensorflow.python.ops.summary_ops_v2:_summary_state",
    without="tf.summary calls of callbacks go to the run's own writers, also where a default writer is set",
    instead=lambda: None,
)
def default_writer() -> Any:
    """The summary writer in force, or None. It relies on TensorFlow keeping it for the thread."""
    from tensorflow.python.ops import summary_ops_v2

    return summary_ops_v2._summary_state.writer


@needs(
    "tensorboard.compat:tf2",
    "tensorflow.python.ops.summary_ops_v2:_summary_state",
    without="tf.summary.scalar in a model records the value of the first tower, and of each micro-batch",
    instead=lambda write: nullcontext(),
)
@contextmanager
def writing_through(write: Callable[..., Any]) -> Iterator[None]:
    """Let `tf.summary.scalar` and the like call `write` meanwhile.

    It relies on them calling ``write`` of the module that `tensorboard.compat.tf2.summary` is.
    """
    from tensorboard.compat import tf2

    summary = tf2.summary
    original, summary.write = summary.write, write
    try:
        yield
    finally:
        summary.write = original


@needs(
    "tensorflow.tsl.profiler.protobuf.xplane_pb2:XSpace",
    without="the trace that GraphProfiler writes for Chrome is empty",
    instead=lambda content: [],
)
def profile_planes(content: bytes) -> Any:
    """The devices in a file that TensorFlow's profiler has written. It relies on the form of that file."""
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

    return XSpace.FromString(content).planes


# -- workers ----------------------------------------------------------------------------------------------------------


@needs(
    f"{_CONTEXT}.configure_coordination_service",
    "tensorflow.python.eager.context:coordination_config_pb2.CoordinatedJob",
    without="TensorFlow takes a worker for lost after a time of its own, and does not say which",
    instead=lambda **_: None,
)
def set_patience(*, leader: str, jobs: Sequence[tuple[str, int]], connected_ms: int, silence_ms: int) -> None:
    """Say how long TensorFlow's coordination service waits for workers, before they are connected.

    Args:
        leader: the task that the service runs in, such as ``/job:worker/replica:0/task:0``.
        jobs: the kinds of tasks, each with their number.
        connected_ms: how long for all to be connected.
        silence_ms: how long for a sign of life.
    """
    from tensorflow.python.eager import context

    job = context.coordination_config_pb2.CoordinatedJob  # whose module moves about from version to version
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=leader,
        heartbeat_timeout_in_ms=silence_ms,
        cluster_register_timeout_in_ms=connected_ms,
        coordinated_jobs=[job(name=name, num_tasks=number) for name, number in jobs],
    )


@needs(
    f"{_CONTEXT}.report_error_to_cluster",
    without="workers that wait for one that has failed are not told, and wait until its process has ended",
    instead=lambda why: None,
)
def report_to_cluster(why: str) -> None:
    """Make every collective operation of all connected workers fail with a text, now and from now on."""
    if has_started():
        with suppress(ValueError, tf.errors.OpError):  # nobody is connected, or no longer
            _context().report_error_to_cluster(_INTERNAL, why)


@needs(
    f"{_CONTEXT}._initialized",
    without="that TensorFlow has started too early for workers to be connected shows only in its own words",
    instead=lambda: False,
)
def has_started() -> bool:
    """Whether TensorFlow has made its devices. It relies on `_initialized`; `tf.config` would start it to answer."""
    return bool(_context()._initialized)


@needs(
    "tensorflow.python.distribute.coordinator.remote_value:RemoteValueStatus.NOT_READY",
    "tensorflow.python.distribute.coordinator.values:RemoteValueImpl._status",
    without="a step on a worker that does not end is waited for",
    instead=lambda result: True,
)
def is_ready(result: Any) -> bool:
    """Whether `get` of what a coordinator has scheduled would give something at once. It relies on `_status`."""
    from tensorflow.python.distribute.coordinator.remote_value import RemoteValueStatus

    return result._status is not RemoteValueStatus.NOT_READY
