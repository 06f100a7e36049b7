"""Recording of `tf.summary` calls: in a watched step, and in Python code outside of compiled steps.

The long compiled call records none of them. A watched step is traced a second time with `recording`, and is run only
when a callback wants to see that very step.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.step.trace import ScalarSummary, tower_trace
from prototrain.tf_private import ChangingWriter, default_writer, writing_through

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event


class SummaryFile:
    """The events of `tf.summary` calls. They go through a file, since TensorFlow's writers know no other place.

    Attributes:
        writer: TensorFlow's.
    """

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="prototrain-"))
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self.writer = tf.summary.create_file_writer(str(self._directory))
        self._offset = 0

    def take(self) -> list[Event]:
        """The events since the last time."""
        from tensorboard.compat.proto.event_pb2 import Event  # only where something was recorded

        from prototrain.experiment.event_files import records

        self.writer.flush()
        path = next(self._directory.iterdir())
        with open(path, "rb") as file:
            file.seek(self._offset)
            events = [Event.FromString(record) for record in records(file.read())]
            self._offset = file.tell()
        os.truncate(path, 0)  # the writer keeps its offset; the hole before it takes no space on the disk
        return [event for event in events if event.HasField("summary")]


# -- in a step --------------------------------------------------------------------------------------------------------


@contextmanager
def recording(writer: tf.summary.SummaryWriter, step: tf.Tensor) -> Iterator[None]:
    """Let a step that is traced in the block record its `tf.summary` calls.

    Scalars are kept for their mean over micro-batches and towers. In a branch, a loop or a `tf.function` inside the
    step there is no mean: the value of the first micro-batch of the first tower is recorded, as of images.

    Args:
        writer: writes the events.
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


class _NotingWriter(ChangingWriter):
    """Notes that something would be written, and writes nothing."""

    asked = False

    def present(self) -> tf.summary.SummaryWriter:
        raise AssertionError("nothing is written")  # `note` keeps TensorFlow from asking

    def note(self) -> bool:
        """Whether to record: never."""
        self.asked = True
        return False


@contextmanager
def noting_summaries() -> Iterator[Callable[[], bool]]:
    """Leave `tf.summary` calls out of what is traced inside; yields a function that tells whether there were any."""
    writer = _NotingWriter()
    with writer.as_default(), tf.summary.record_if(writer.note):
        yield lambda: writer.asked


# -- in Python --------------------------------------------------------------------------------------------------------


class PythonSummaries(ChangingWriter):
    """Records the `tf.summary` calls of Python code that has no writer; costs nothing until something is written.

    Args:
        log: prints a line for the user.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._file: SummaryFile | None = None
        self._is_asked = self._has_warned = False

    @contextmanager
    def recording(self, step: int) -> Iterator[None]:
        """Record `tf.summary` calls in the block, at this step unless they name one.

        A writer that the user has set records them instead.
        """
        writer = default_writer()
        if writer is not None and not isinstance(writer, PythonSummaries):
            yield
            return
        with tf.summary.record_if(self._may_record), self.as_default(step=step):
            yield
            set_by_user = default_writer()
        if set_by_user is not None and set_by_user is not self:  # such as by Keras's TensorBoard
            set_by_user.set_as_default(tf.summary.experimental.get_step())

    def _may_record(self) -> bool:
        if tf.executing_eagerly() or default_writer() is not self:
            return True
        if not self._has_warned:
            self._has_warned = True  # first: another thread may be tracing as well
            # It is called later as well, when its step is no longer that of its tracing.
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
        """The events since the last time."""
        if not self._is_asked or self._file is None:
            return []
        self._is_asked = False
        return self._file.take()


def without_summaries() -> AbstractContextManager[Any]:
    """Leave `tf.summary` calls out of a model that is traced for something else than a step, such as an evaluation."""
    is_traced = tower_trace() is None and not tf.executing_eagerly()
    return noting_summaries() if is_traced and isinstance(default_writer(), PythonSummaries) else nullcontext()
