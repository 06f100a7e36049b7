"""TFRecord files, such as TensorBoard's event files, read without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator


def records(data: bytes) -> Iterator[bytes]:
    """The records of a TFRecord file: each is its length and that number's checksum, the data and its checksum.

    A last one that is cut short, because it is being written, is left out. The checksums of data are not looked at.
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
