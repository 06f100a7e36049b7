"""What Python code beside the compiled steps gives to `tf.summary`: triggers of callbacks, a `run_step` in Python."""

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

from prototrain.private_api.runtime import ChangingWriter, default_writer

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

_recording = threading.local()


class PythonSummaries:
    """Records the `tf.summary` calls of Python code that has no writer of its own.

    Args:
        log: prints a line for the user.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._writer = _LazyWriter(log)

    @contextmanager
    def recording(self, step: int) -> Iterator[None]:
        """Let `tf.summary` calls be recorded meanwhile, at a step unless they name one.

        Where the user has set a writer, they go there.
        """
        writer = default_writer()
        if writer is not None and not isinstance(writer, _LazyWriter):
            yield
            return
        outer = getattr(_recording, "active", False)
        _recording.active = True
        try:
            with self._writer.as_default(step=step):
                yield
                set_by_user = default_writer()
            if set_by_user is not None and set_by_user is not self._writer:  # such as by Keras's TensorBoard
                set_by_user.set_as_default(tf.summary.experimental.get_step())
        finally:
            _recording.active = outer

    def take(self) -> list[Event]:
        """What was recorded since the last time."""
        return self._writer.take()


def left_out_of_graphs() -> AbstractContextManager[Any]:
    """What a model is built in beside its steps, such as to be evaluated: its `tf.summary` calls are for the steps."""
    if tf.executing_eagerly() or not getattr(_recording, "active", False):
        return nullcontext()
    return noting_summaries()


class _LazyWriter(ChangingWriter):
    """A writer that costs nothing until something is written."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._file: SummaryFile | None = None
        self._unseen: SummaryFile | None = None
        self._is_asked = False

    def present(self) -> tf.summary.SummaryWriter:
        if tf.executing_eagerly():
            self._is_asked = True
            self._file = SummaryFile() if self._file is None else self._file
            return self._file.writer
        if self._unseen is None:
            # It is called later as well, when its step is no longer that of its tracing.
            self._log(
                "WARNING: tf.summary calls inside of a function that tf.function compiles are not recorded outside of "
                "a compiled step; return the values and call monitors.put_image, put_histogram, put_text or put_scalar"
            )
            with tf.init_scope():
                self._unseen = SummaryFile()
        return self._unseen.writer

    def take(self) -> list[Event]:
        """What was written since the last time, in eager code."""
        if not self._is_asked or self._file is None:
            return []
        self._is_asked = False
        return self._file.take()


class SummaryFile:
    """What `tf.summary` calls make. It goes through a file, since TensorFlow's summary writers know no other place.

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


class _NotingWriter(tf.summary.SummaryWriter):  # type: ignore[misc]
    """Stands in for a summary writer while the long call is traced: nothing is written, that something was is
    noted."""

    def __init__(self) -> None:
        self.asked = False

    def init(self) -> None:
        """Nothing to begin."""

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""

    def note(self) -> bool:
        self.asked = True
        return False


@contextmanager
def noting_summaries() -> Iterator[Callable[[], bool]]:
    """Leave `tf.summary` calls out of what is traced inside; yields a function that says whether there were any."""
    writer = _NotingWriter()
    with writer.as_default(), tf.summary.record_if(writer.note):
        yield lambda: writer.asked
