"""Arrays as pictures, histograms and text, in the form that TensorBoard reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.dtypes import string
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.image.metadata import create_summary_metadata
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.util.tensor_util import make_tensor_proto

from prototrain.errors import CallbackError

CHANNELS = (1, 3, 4)


def pictures(name: str, images: Any) -> np.ndarray[Any, Any]:
    """Pictures as uint8 of shape [number, height, width, channels].

    Args:
        name: what messages call them.
        images: numbers from 0 to 255, of shape [height, width], [height, width, 1, 3 or 4], [number, height, width], or
            [number, height, width, 1, 3 or 4]; what lies beyond is cut off, and NaN is black.

    Raises:
        CallbackError: they have another shape.
    """
    array = np.asarray(images)
    if array.ndim == 2:
        array = array[None, :, :, None]
    elif array.ndim == 3:
        array = array[None] if array.shape[-1] in CHANNELS else array[..., None]
    if array.ndim != 4 or array.shape[-1] not in CHANNELS:
        raise CallbackError(
            f"{name!r} must have shape [height, width], [number, height, width] or either with 1, 3 or 4 channels "
            f"behind, got {list(np.shape(images))}"
        )
    return np.rint(np.clip(np.nan_to_num(array.astype(np.float64)), 0, 255)).astype(np.uint8)


def png(picture: np.ndarray[Any, Any]) -> bytes:
    """A picture, uint8 of shape [height, width, channels], as the content of a PNG file."""
    return bytes(tf.io.encode_png(picture).numpy())


def image_summary(tag: str, images: Any) -> Summary:
    """Pictures as `tf.summary.image` writes them; see `pictures` for the shapes."""
    array = pictures(tag, images)
    _, height, width, _ = array.shape
    content = [str(width).encode(), str(height).encode(), *map(png, array)]
    tensor = make_tensor_proto(content, dtype=string)
    metadata = create_summary_metadata(display_name=None, description=None)
    return Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])


def histogram_summary(tag: str, values: Any) -> Summary:
    """How numbers are distributed, as `tf.summary.histogram` writes it; those that are not finite are left out."""
    array = np.asarray(values, np.float64).ravel()
    return histogram_pb(tag, array[np.isfinite(array)])


def text_summary(tag: str, text: str) -> Summary:
    """Text, in Markdown, as `tf.summary.text` writes it."""
    return text_pb(tag, text)
