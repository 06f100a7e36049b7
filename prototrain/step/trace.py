"""Values that tracing a step collects in addition to its scalars, and its `tf.summary` calls."""

from __future__ import annotations

import functools
import os
import shutil
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

    from prototrain.step.nonfinite import Guard


@dataclass
class TowerTrace:
    """One tower's step while it is traced; see `tower_trace`."""

    guard: Guard
    is_watched: bool  # whether the step returns more than its scalars
    nets: list[Mapping[str, Any]] = field(default_factory=list)  # what `build` returned for each micro-batch
    weight: tf.Tensor | None = None  # the "loss_weight" of the last `build`, until it has been applied
    has_no_weight: tf.Tensor | None = None  # whether the weights of all towers are 0; None without a "loss_weight"
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


def compiled(function: Callable[..., Any], *specs: Any) -> Any:
    """Return a `tf.function` without AutoGraph, for a method or an inner function; `specs` are its signature."""
    # TensorFlow counts traces by code object and warns at the fifth; a `partial` is counted separately.
    return tf.function(functools.partial(function), autograph=False, input_signature=specs or None)


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


class _DetectingWriter(tf.summary.SummaryWriter):  # type: ignore[misc]
    """A writer that notes whether something would be written, but writes nothing."""

    asked = False

    def init(self) -> None:
        """Do nothing."""

    flush = close = init

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
