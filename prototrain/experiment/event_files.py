"""TensorBoard event files, read without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SessionLog


def records(data: bytes) -> Iterator[bytes]:
    """The records of a TFRecord file: each is its length and that number's checksum, the data and its checksum.

    A last one that is cut short, because it is being written, is left out.

    Raises:
        ValueError: what stands where a record should begin is none. Of its data the checksum is not looked at: without
            TensorFlow that takes long.
    """
    # Only here: it brings numpy along and, where they are installed, boto3 and fsspec, which takes half a second.
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    position = 0
    while position + 12 <= len(data):
        length, checksum = struct.unpack_from("<QI", data, position)
        if checksum != masked_crc32c(data[position : position + 8]):
            raise ValueError(f"there is no record at byte {position}")
        end = position + 16 + length
        if end > len(data):
            return
        yield data[position + 12 : end - 4]
        position = end


def _events(path: Path, complain: Callable[[str], None]) -> Iterator[Event]:
    try:
        yield from map(Event.FromString, records(path.read_bytes()))
    except (ValueError, DecodeError) as error:
        complain(f"{path} is damaged, and what is behind the damage is left out: {error}")


def read_images(summaries: Path, complain: Callable[[str], None] = print) -> dict[str, dict[int, list[bytes]]]:
    """What `tf.summary.image` has left in the event files below a directory.

    Args:
        summaries: the directory.
        complain: called with a line about a file that is damaged.

    Returns:
        for each name, such as "trn/digits", the encoded images by step.
    """
    found: dict[str, dict[int, list[bytes]]] = {}
    for path in sorted(summaries.rglob("events.out.tfevents.*")):
        prefix = "" if path.parent == summaries else f"{path.parent.relative_to(summaries).as_posix()}/"
        for event in _events(path, complain):
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                for name in [name for name in found if name.rpartition("/")[0] == prefix.rstrip("/")]:
                    found[name] = {step: images for step, images in found[name].items() if step < event.step}
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "images":
                    # Before the images themselves stand their width and height.
                    found.setdefault(f"{prefix}{value.tag}", {})[event.step] = list(value.tensor.string_val[2:])
    return found
