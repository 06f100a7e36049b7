"""Values that tracing a step collects in addition to its scalars, and `tf.summary` calls in steps and in Python."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.tf_private import ChangingWriter, clear_default_writer, default_writer, writing_through

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

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


# -- tf.summary --------------------------------------------------------------------------------------------------------


class SummaryFile:
    """A buffer for the events of `tf.summary` calls, in a temporary file: TensorFlow can write to files only.

    Attributes:
        writer: the TensorFlow summary writer.
    """

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="prototrain-"))
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self.writer = tf.summary.create_file_writer(str(self._directory))
        self._offset = 0

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        from tensorboard.compat.proto.event_pb2 import Event  # imported only if something was recorded

        from prototrain.experiment.event_files import records

        self.writer.flush()
        path = next(self._directory.iterdir())
        with open(path, "rb") as file:
            file.seek(self._offset)
            events = [Event.FromString(record) for record in records(file.read())]
            self._offset = file.tell()
        os.truncate(path, 0)  # the writer keeps its offset; the gap before it takes no disk space
        return [event for event in events if event.HasField("summary")]


# -- in a step ------------------------------------------------------------------------------------------------------


@contextmanager
def recording(writer: tf.summary.SummaryWriter, step: tf.Tensor) -> Iterator[None]:
    """Context manager that makes a step traced in it record its `tf.summary` calls.

    Scalars are averaged over micro-batches and towers. Images, and scalars in a branch, a loop or a `tf.function`
    inside the step, are recorded for the first micro-batch of the first tower.

    Args:
        writer: the summary writer.
        step: the number of the step, int64.
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


class _NotingWriter(ChangingWriter):
    """A writer that notes whether something would be written, but writes nothing."""

    asked = False

    def present(self) -> tf.summary.SummaryWriter:
        raise AssertionError("nothing is written")  # `note` prevents the call

    def note(self) -> bool:
        """Note the request; returns False, so that TensorFlow records nothing."""
        self.asked = True
        return False


@contextmanager
def noting_summaries() -> Iterator[Callable[[], bool]]:
    """Context manager that omits `tf.summary` calls from traced code.

    Yields a function that returns whether there were any calls.
    """
    writer = _NotingWriter()
    with writer.as_default(), tf.summary.record_if(writer.note):
        yield lambda: writer.asked


# -- in Python ------------------------------------------------------------------------------------------------------


class PythonSummaries(ChangingWriter):
    """Records the `tf.summary` calls of Python code that has no writer; free until something is written.

    Args:
        log: prints a line for the user.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._file: SummaryFile | None = None
        self._is_asked = self._has_warned = False

    @contextmanager
    def recording(self, step: int) -> Iterator[None]:
        """Context manager that records `tf.summary` calls, with `step` as the default step.

        If the user has set a default writer, that writer records them instead.
        """
        writer = default_writer()
        if writer is not None and not isinstance(writer, PythonSummaries):
            yield
            if isinstance(default_writer(), PythonSummaries):  # the user has left a context entered in another hook
                clear_default_writer()
            return
        with tf.summary.record_if(self._may_record), self.as_default(step=step):
            yield
            set_by_user = default_writer()
        if set_by_user is not None and set_by_user is not self:  # by Keras's TensorBoard callback, for example
            set_by_user.set_as_default(tf.summary.experimental.get_step())

    def _may_record(self) -> bool:
        if tf.executing_eagerly() or default_writer() is not self:
            return True
        if not self._has_warned:
            self._has_warned = True  # set first: another thread may be tracing too
            # Such a function is also called later, but its summaries would have the step of the trace.
            self._log(
                "WARNING: tf.summary calls inside of a function that tf.function compiles are not recorded outside of "
                "a compiled step; return the values and call monitors.put_image, put_histogram, put_text or put_scalar"
            )
        return False

    def present(self) -> tf.summary.SummaryWriter:
        self._is_asked = True
        if self._file is None:
            with tf.init_scope():
                self._file = SummaryFile()
        return self._file.writer

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        if not self._is_asked or self._file is None:
            return []
        self._is_asked = False
        return self._file.take()


def without_summaries() -> AbstractContextManager[Any]:
    """Context manager that omits `tf.summary` calls from a model that is traced for an evaluation, not a step."""
    is_traced = tower_trace() is None and not tf.executing_eagerly()
    return noting_summaries() if is_traced and isinstance(default_writer(), PythonSummaries) else nullcontext()
