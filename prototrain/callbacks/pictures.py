"""TensorBoard summaries of images, histograms and text."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.image import metadata as of_image
from tensorboard.plugins.text import metadata as of_text

from prototrain.errors import CallbackError

CHANNELS = (1, 3, 4)


def pictures(name: str, images: Any) -> np.ndarray[Any, Any]:
    """Convert numbers from 0 to 255 to uint8 of shape [number, height, width, channels]; NaN becomes 0.

    The shape may be [height, width], [number, height, width], or either with 1, 3 or 4 channels behind.
    """
    array = np.asarray(images)
    if array.ndim == 2:
        array = array[None, :, :, None]
    elif array.ndim == 3:
        array = array[None] if array.shape[-1] in CHANNELS else array[..., None]
    if array.ndim != 4 or array.shape[-1] not in CHANNELS:
        shapes = "[height, width] or [number, height, width], or either with 1, 3 or 4 channels"
        raise CallbackError(f"{name!r} must have shape {shapes}, got {list(np.shape(images))}")
    return np.rint(np.clip(np.nan_to_num(array.astype(np.float64)), 0, 255)).astype(np.uint8)


def png(picture: np.ndarray[Any, Any]) -> bytes:
    """Encode an image, uint8 of shape [height, width, channels], as PNG."""
    return bytes(tf.io.encode_png(picture).numpy())


def image_summary(tag: str, images: Any) -> Summary:
    """Return an image summary like that of `tf.summary.image`; see `pictures` for the shapes."""
    array = pictures(tag, images)
    _, height, width, _ = array.shape
    content = [str(width).encode(), str(height).encode(), *map(png, array)]
    return _of_texts(tag, content, of_image.create_summary_metadata(display_name=None, description=None))


def histogram_summary(tag: str, values: Any) -> Summary:
    """Return a histogram summary like that of `tf.summary.histogram`. Non-finite values are skipped."""
    # Imported here, since it takes half a second.
    from tensorboard.plugins.histogram.summary_v2 import histogram_pb

    array = np.asarray(values, np.float64).ravel()
    return histogram_pb(tag, array[np.isfinite(array)])


def text_summary(tag: str, text: str) -> Summary:
    """Return a summary of Markdown text like that of `tf.summary.text`."""
    return _of_texts(tag, text.encode(), of_text.create_summary_metadata(display_name=None, description=None))


def _of_texts(tag: str, texts: bytes | list[bytes], metadata: SummaryMetadata) -> Summary:
    tensor = TensorProto.FromString(tf.make_tensor_proto(texts, tf.string).SerializeToString())  # TensorBoard's class
    return Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])
