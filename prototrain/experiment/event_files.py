"""A reader of TFRecord files, such as TensorBoard's event files, without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records in the content of a TFRecord file.

    A record consists of its length, the checksum of the length, the data, and the checksum of the data. An incomplete
    last record, which is still being written, is skipped. The checksums of the data are not verified.

    Raises:
        ValueError: the checksum of a length is wrong.
    """
    # Imported here because it imports numpy and, if installed, boto3 and fsspec, which takes half a second.
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
