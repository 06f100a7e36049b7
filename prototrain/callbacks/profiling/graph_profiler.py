"""TensorFlow's profiler for some steps of a run."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError
from prototrain.private_api.runtime import profile_planes
from prototrain.system.files import write_atomic


class GraphProfiler(Callback):
    """Profiles a few steps with TensorFlow's profiler; TensorBoard's profile tab shows the outcome.

    The files go into ``summaries/plugins/profile/``. Each of the steps is a separate call, marked as a step.

    Args:
        first_step: the first step that is profiled; not the very first, which is spent on tracing.
        steps: how many.
        chrome_trace: whether to write ``analysis/profile-step-<last>.json`` as well, which ``chrome://tracing`` opens.

    Raises:
        CallbackError: a number is not positive.
    """

    def __init__(self, *, first_step: int = 10, steps: int = 5, chrome_trace: bool = False) -> None:
        if first_step < 1 or steps < 1:
            raise CallbackError(f"GraphProfiler: first_step and steps must be at least 1, got {first_step} and {steps}")
        self._before = first_step - 1
        self._last = first_step - 1 + steps
        self._chrome_trace = chrome_trace
        self._running = False
        self._step = ExitStack()  # ends the mark of the step that is under way

    def setup(self) -> None:
        self._directory = self.trainer.require_experiment("GraphProfiler").summaries

    def before_train(self) -> None:
        if self.trainer.global_step == self._before:
            self._start()

    def next_step(self, step: int) -> int | None:
        if self._running:
            return step + 1
        return self._before if step < self._before else None

    def trigger_step(self) -> None:
        if not self._running:
            if self.trainer.global_step == self._before:
                self._start()
            return
        self._step.close()
        if self.trainer.global_step >= self._last:
            self._stop()
        else:
            self._mark()

    def after_train(self) -> None:
        if self._running:
            self._stop()

    def _start(self) -> None:
        tf.profiler.experimental.start(str(self._directory))
        self._running = True
        self._mark()

    def _mark(self) -> None:
        step = tf.profiler.experimental.Trace("train", step_num=self.trainer.global_step + 1, _r=1)
        self._step.enter_context(step)

    def _stop(self) -> None:
        self._running = False
        self._step.close()
        tf.profiler.experimental.stop()
        self.trainer.log(
            f"profiled up to step {self.trainer.global_step}; look at it in TensorBoard: {self._directory}"
        )
        if self._chrome_trace:
            analysis = self._directory.parent / "analysis"
            path = analysis / f"profile-step-{self.trainer.global_step:010d}.json"
            write_chrome_trace(self._directory / "plugins" / "profile", path)
            self.trainer.log(f"or in chrome://tracing: {path}")


def write_chrome_trace(profiles: Path, path: Path) -> None:
    """Write what the profiler recorded last as Chrome's trace events.

    Args:
        profiles: the directory ``plugins/profile`` that the profiler wrote into.
        path: the JSON file; its directory is made.

    Raises:
        OSError: there is no profile, or the file cannot be written.
    """
    newest = max(profiles.iterdir(), key=lambda directory: directory.stat().st_mtime_ns)
    events: list[dict[str, Any]] = []
    for file in sorted(newest.glob("*.xplane.pb")):
        for plane in profile_planes(file.read_bytes()):
            events += _events(len(events), plane)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))


def _events(process: int, plane: Any) -> list[dict[str, Any]]:
    """A device as a process, each of its lines as a thread; times in microseconds."""
    if not plane.lines:
        return []
    found: list[dict[str, Any]] = [_name("process", plane.name, pid=process)]
    for thread, line in enumerate(plane.lines):
        found.append(_name("thread", line.display_name or line.name, pid=process, tid=thread))
        for event in line.events:
            start = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
            metadata = plane.event_metadata[event.metadata_id]
            name = metadata.display_name or metadata.name
            found.append(
                {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": start, "dur": event.duration_ps / 1e6}
            )
    return found


def _name(what: str, name: str, **where: int) -> dict[str, Any]:
    return {"ph": "M", "name": f"{what}_name", "args": {"name": name}, **where}
