"""TensorBoard writer."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

from prototrain.callbacks.monitor import Monitor, split_name
from prototrain.callbacks.pictures import text_summary
from prototrain.system.tracebacks import cause

_EVENT_FILES = "events.out.tfevents."


class TensorBoardWriter(Monitor):
    """Writes TensorBoard event files below ``summaries/``.

    Each prefix has a separate directory, so ``trn/loss`` and ``vld/loss`` share a chart. When a run is resumed,
    TensorBoard drops later steps of earlier files. After an error, such as a full disk, nothing more is written until
    the run is resumed. At each start of the run, the config is written as the text ``config``.
    """

    clock = staticmethod(time.time)

    def setup(self) -> None:
        self._directory = self.trainer.require_experiment("TensorBoardWriter").summaries
        self._files: dict[str, Any] | None = None  # by prefix
        self._has_failed = False

    def before_train(self) -> None:
        if self.trainer.global_step >= self.trainer.total_steps:
            return  # there is nothing to do
        config = self.trainer.run.config()
        # Markdown shows indented lines verbatim.
        text = "" if config is None else "\n".join(f"    {line}" for line in config.to_text().splitlines())
        if text:
            self.put_event("", Event(step=self.trainer.global_step, summary=text_summary("config", text)))

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        events: dict[str, Event] = {}
        for name, value in values.items():
            prefix, tag = split_name(name)
            events.setdefault(prefix, Event(step=step)).summary.value.add(tag=tag, simple_value=value)
        for prefix, event in events.items():
            self.put_event(prefix, event)

    def put_event(self, prefix: str, event: Event) -> None:
        with self._warning():
            if self._files is None:
                self._files = {}
                self._mark_start()
            self._write(prefix, event)

    def flush(self) -> None:
        with self._warning():
            for file in (self._files or {}).values():
                file.flush()

    def after_train(self) -> None:
        with self._warning():
            for file in (self._files or {}).values():
                file.close()
        self._files = {}

    @contextmanager
    def _warning(self) -> Iterator[None]:
        """Context manager that prints a warning instead of raising an error, and ends the writing."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            self._files, self._has_failed = {}, True
            text = f"WARNING: cannot write to {self._directory}: {cause(error)}; TensorBoard lacks the rest of this run"
            self.trainer.run.log_once(text)

    def _mark_start(self) -> None:
        """Mark a new start in existing directories: TensorBoard drops earlier events of the steps from the mark on."""
        step = self.trainer.run.began_at
        for directory in sorted({path.parent for path in self._directory.rglob(f"{_EVENT_FILES}*")}):
            prefix = "" if directory == self._directory else directory.relative_to(self._directory).as_posix()
            # A run that starts at step 0 writes everything again.
            mark = Event(step=step + 1 if step else 0, session_log=SessionLog(status=SessionLog.START))
            self._write(prefix, mark)

    def _write(self, prefix: str, event: Event) -> None:
        if self._has_failed:
            return
        assert self._files is not None
        if prefix not in self._files:
            directory = self._directory / prefix
            directory.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads the files of a directory in the order of their names; clocks of machines may differ.
            others = [path.name.removeprefix(_EVENT_FILES) for path in directory.glob(f"{_EVENT_FILES}[0-9]*.*")]
            number = max([0, *(int(name.partition(".")[0]) + 1 for name in others)])
            name = f"{_EVENT_FILES}{number:010d}.{platform.node()}"
            self._files[prefix] = tf.io.TFRecordWriter(str(directory / name))
            self._write(prefix, Event(file_version="brain.Event:2"))
        event.wall_time = self.clock()
        self._files[prefix].write(event.SerializeToString())
