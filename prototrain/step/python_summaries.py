"""What Python code beside the compiled steps gives to `tf.summary`: triggers of callbacks, a `run_step` in Python."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event

from prototrain.private_api.runtime import ChangingWriter, default_writer
from prototrain.step.watched import SummaryFile, noting_summaries

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
