"""TensorBoard event files, read without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog


def records(data: bytes) -> Iterator[bytes]:
    """The records of a TFRecord file: each is its length and that number's checksum, the data and its checksum.

    A last one that is cut short, because it is being written, is left out.
    """
    position = 0
    while position + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        end = position + 16 + length
        if end > len(data):
            return
        yield data[position + 12 : end - 4]
        position = end


def read_images(summaries: Path) -> dict[str, dict[int, list[bytes]]]:
    """What `tf.summary.image` has left in the event files below a directory.

    Returns:
        for each name, such as "trn/digits", the encoded images by step.
    """
    found: dict[str, dict[int, list[bytes]]] = {}
    for path in sorted(summaries.rglob("events.out.tfevents.*")):
        prefix = "" if path.parent == summaries else f"{path.parent.relative_to(summaries).as_posix()}/"
        for event in map(Event.FromString, records(path.read_bytes())):
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                for name in [name for name in found if name.rpartition("/")[0] == prefix.rstrip("/")]:
                    found[name] = {step: images for step, images in found[name].items() if step < event.step}
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "images":
                    # Before the images themselves stand their width and height.
                    found.setdefault(f"{prefix}{value.tag}", {})[event.step] = list(value.tensor.string_val[2:])
    return found
