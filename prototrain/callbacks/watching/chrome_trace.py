"""A profile of TensorFlow's as a file that ``chrome://tracing`` and Perfetto open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prototrain.private_api.runtime import profile_planes
from prototrain.system.files import write_atomic


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
