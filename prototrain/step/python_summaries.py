"""Recording of `tf.summary` calls outside of compiled steps: in triggers of callbacks and a `run_step` in Python."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.tf_private import ChangingWriter, default_writer

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

_recording = threading.local()


class PythonSummaries(ChangingWriter):
    """Records the `tf.summary` calls of Python code that has no writer; costs nothing until something is written.

    Args:
        log: prints a line for the user.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._file: SummaryFile | None = None
        self._unseen: SummaryFile | None = None
        self._is_asked = self._has_warned = False

    @contextmanager
    def recording(self, step: int) -> Iterator[None]:
        """Record `tf.summary` calls in the block, at this step unless they name one.

        Where the user has set a writer, they go there.
        """
        writer = default_writer()
        if writer is not None and not isinstance(writer, PythonSummaries):
            yield
            return
        outer = getattr(_recording, "active", False)
        _recording.active = True
        try:
            with self.as_default(step=step):
                yield
                set_by_user = default_writer()
            if set_by_user is not None and set_by_user is not self:  # such as by Keras's TensorBoard
                set_by_user.set_as_default(tf.summary.experimental.get_step())
        finally:
            _recording.active = outer

    def present(self) -> tf.summary.SummaryWriter:
        if tf.executing_eagerly():
            self._is_asked = True
            self._file = SummaryFile() if self._file is None else self._file
            return self._file.writer
        if not self._has_warned:
            self._has_warned = True  # first: another thread may be tracing as well
            # It is called later as well, when its step is no longer that of its tracing.
            self._log(
                "WARNING: tf.summary calls inside of a function that tf.function compiles are not recorded outside of "
                "a compiled step; return the values and call monitors.put_image, put_histogram, put_text or put_scalar"
            )
        if self._unseen is None:
            with tf.init_scope():
                self._unseen = SummaryFile()
        return self._unseen.writer

    def take(self) -> list[Event]:
        """The events of eager code since the last time."""
        if not self._is_asked or self._file is None:
            return []
        self._is_asked = False
        return self._file.take()


def left_out_of_graphs() -> AbstractContextManager[Any]:
    """Leave `tf.summary` calls out of a model that is built for something else than a step, such as an evaluation."""
    if tf.executing_eagerly() or not getattr(_recording, "active", False):
        return nullcontext()
    return noting_summaries()


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


class _NotingWriter(ChangingWriter):
    """Notes that something would be written while the long call is traced, and writes nothing."""

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
