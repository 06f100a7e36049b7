"""TensorBoard writer."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

from prototrain.callbacks.monitor import Monitor, split_name
from prototrain.callbacks.pictures import text_summary
from prototrain.system.tracebacks import cause

_EVENT_FILES = "events.out.tfevents."
_RETRY_SECONDS = 10.0  # each attempt on a full disk leaves a file


class TensorBoardWriter(Monitor):
    """Writes TensorBoard event files below ``summaries/``.

    Each prefix has a separate directory, so ``trn/loss`` and ``vld/loss`` share a chart. When a run is resumed,
    TensorBoard drops later steps of earlier files. Events that cannot be written, for example on a full disk, are
    written later. At each start of the run, the config is written as the text ``config``.

    Args:
        clock: returns the wall time of events, in seconds since the epoch.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock

    def setup(self) -> None:
        self._directory = self.trainer.require_experiment("TensorBoardWriter").summaries
        self._sub_runs: dict[str, _SubRun] | None = None
        self._has_failed = False
        self._retry_at = 0.0  # after a failed write, when to write again

    def before_train(self) -> None:
        if self.trainer.global_step >= self.trainer.total_steps:
            return  # there is nothing to do
        self._open()
        config = self.trainer.run.config()
        if config is not None:
            # Markdown shows indented lines verbatim.
            text = "\n".join(f"    {line}" for line in config.to_text().splitlines())
            self.put_event("", Event(step=self.trainer.global_step, summary=text_summary("config", text)))

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        events: dict[str, Event] = {}
        for name, value in values.items():
            prefix, tag = split_name(name)
            events.setdefault(prefix, Event(step=step)).summary.value.add(tag=tag, simple_value=value)
        for prefix, event in events.items():
            self.put_event(prefix, event)

    def put_event(self, prefix: str, event: Event) -> None:
        sub_runs = self._open()
        if prefix not in sub_runs:
            sub_runs[prefix] = _SubRun(self._directory / prefix)
        event.wall_time = self._clock()
        sub_runs[prefix].events.append(event.SerializeToString())

    def flush(self) -> None:
        if time.monotonic() < self._retry_at:
            return
        try:
            for sub_run in (self._sub_runs or {}).values():
                sub_run.flush(self._clock())
        except (OSError, tf.errors.OpError) as error:
            if not self._has_failed:
                text = f"WARNING: cannot write to {self._directory}: {cause(error)}; trying again later"
                self.trainer.log(text)
            self._has_failed = True
            self._retry_at = time.monotonic() + _RETRY_SECONDS

    def after_train(self) -> None:
        self._retry_at = 0.0
        self.flush()
        for sub_run in (self._sub_runs or {}).values():
            sub_run.close()

    def _open(self) -> dict[str, _SubRun]:
        """Return the sub-runs by prefix. The first call marks a new start in existing sub-runs."""
        if self._sub_runs is None:
            self._sub_runs = {}
            for directory in sorted({path.parent for path in self._directory.rglob(f"{_EVENT_FILES}*")}):
                prefix = "" if directory == self._directory else directory.relative_to(self._directory).as_posix()
                # TensorBoard drops steps from the mark on. A run that starts at step 0 writes everything again.
                step = self.trainer.global_step
                mark = Event(step=step + 1 if step else 0, session_log=SessionLog(status=SessionLog.START))
                self.put_event(prefix, mark)
        return self._sub_runs


class _SubRun:
    """The event file and the pending events of one prefix."""

    def __init__(self, directory: Path) -> None:
        self.events: list[bytes] = []
        self._directory = directory
        self._file: Any = None

    def flush(self, now: float) -> None:
        """Write the pending events. After an OSError or `tf.errors.OpError`, all of them remain pending."""
        if not self.events:
            return
        try:
            header = [] if self._file else [self._start(now)]
            for event in header + self.events:
                self._file.write(event)
            self._file.flush()
        except tf.errors.OpError:
            self.close()
            raise
        self.events = []

    def close(self) -> None:
        if self._file is not None:
            with suppress(tf.errors.OpError):
                self._file.close()
            self._file = None

    def _start(self, now: float) -> bytes:
        """Create a new file and return its first record."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a directory in the order of their names; clocks of machines may differ.
        others = [path.name.removeprefix(_EVENT_FILES) for path in self._directory.glob(f"{_EVENT_FILES}[0-9]*.*")]
        number = max([0, *(int(name.partition(".")[0]) + 1 for name in others)])
        self._file = tf.io.TFRecordWriter(str(self._directory / f"{_EVENT_FILES}{number:010d}.{platform.node()}"))
        return bytes(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
