"""Values that tracing a step collects in addition to its scalars, and `tf.summary` calls in steps and in Python."""

from __future__ import annotations

import functools
import os
import shutil
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.tf_private import ChangingWriter, default_writer

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

    from prototrain.step.nonfinite import NoCheck


@dataclass
class TowerTrace:
    """One tower's step while it is traced; see `tower_trace`."""

    guard: NoCheck
    is_watched: bool  # whether the step returns more than its scalars
    nets: list[Mapping[str, Any]] = field(default_factory=list)  # what `build` returned for each micro-batch
    weight: tf.Tensor | None = None  # the "loss_weight" of the last `build`, until it has been applied
    scalars: dict[str, tf.Tensor] = field(default_factory=dict)  # to report in addition to those of `train_step`
    applied: list[tf.Tensor] = field(default_factory=list)  # whether each guarded update was finite, in all towers
    graph: Any = field(default_factory=tf.compat.v1.get_default_graph)  # a branch of a `tf.cond` has another one


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


def compiled(function: Callable[..., Any]) -> Any:
    """Return a `tf.function` without AutoGraph, for a method or an inner function."""
    # TensorFlow counts traces by code object and warns at the fifth; a `partial` is counted separately.
    return tf.function(functools.partial(function), autograph=False)


# -- tf.summary --------------------------------------------------------------------------------------------------------


class SummaryFile:
    """A buffer for the events of `tf.summary` calls, in a temporary file: TensorFlow can write to files only."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="prototrain-"))
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self.writer = tf.summary.create_file_writer(str(self._directory))
        self._offset = 0

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        from tensorboard.compat.proto.event_pb2 import Event  # imported only if something was recorded

        self.writer.flush()
        path = next(self._directory.iterdir())
        with open(path, "rb") as file:
            file.seek(self._offset)
            events = [Event.FromString(record) for record in _records(file.read())]
            self._offset = file.tell()
        os.truncate(path, 0)  # the writer keeps its offset; the gap before it takes no disk space
        return [event for event in events if event.HasField("summary")]


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a TFRecord file: a length and its checksum, 12 bytes, the data and its checksum, 4 bytes."""
    position = 0
    while position < len(data):
        end = position + 16 + struct.unpack_from("<Q", data, position)[0]
        yield data[position + 12 : end - 4]
        position = end


class _DetectingWriter(ChangingWriter):
    """A writer that notes whether something would be written, but writes nothing."""

    asked = False

    def present(self) -> tf.summary.SummaryWriter:
        raise AssertionError("nothing is written")  # `note` prevents the call

    def note(self) -> bool:
        """Note the request; returns False, so that TensorFlow records nothing."""
        self.asked = True
        return False


@contextmanager
def detect_summaries() -> Iterator[Callable[[], bool]]:
    """Omit `tf.summary` calls from traced code; yields a function that returns whether there were any."""
    writer = _DetectingWriter()
    with writer.as_default(), tf.summary.record_if(writer.note):
        yield lambda: writer.asked


# -- in Python ------------------------------------------------------------------------------------------------------


class PythonSummaries(ChangingWriter):
    """Records the `tf.summary` calls of Python code that has no writer; free until something is written."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._file: SummaryFile | None = None
        self._is_asked = self._has_warned = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Context manager around a run that records `tf.summary` calls, unless the user has a default writer."""
        if not isinstance(default_writer(), PythonSummaries | None):
            yield
            return
        step = tf.summary.experimental.get_step()
        with tf.summary.record_if(self._may_record), self.as_default():
            try:
                yield
            finally:
                tf.summary.experimental.set_step(step)

    def begin(self, step: int) -> None:
        """Set the default step of the next `tf.summary` calls, unless the user has set another default writer."""
        if default_writer() is self:
            tf.summary.experimental.set_step(step)

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
        if self._file is None:
            with tf.init_scope():
                self._file = SummaryFile()
        self._is_asked = True
        return self._file.writer

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        is_asked, self._is_asked = self._is_asked, False
        return self._file.take() if is_asked and self._file is not None else []


def without_summaries() -> AbstractContextManager[Any]:
    """Context manager that omits `tf.summary` calls from a model that is traced for an evaluation, not a step."""
    is_traced = tower_trace() is None and not tf.executing_eagerly()
    return detect_summaries() if is_traced and isinstance(default_writer(), PythonSummaries) else nullcontext()
