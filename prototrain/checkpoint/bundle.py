"""The variables of a checkpoint, in the form in which TensorFlow writes tensors: a bundle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import CheckpointError
from prototrain.system.files import literal_prefix
from prototrain.system.niceness import give_way
from prototrain.system.tracebacks import first_line

BUNDLE = "model"
"""What the names of a checkpoint's own bundle start with."""
READ_ERRORS = (OSError, ValueError, IndexError, KeyError, TypeError, RuntimeError, AssertionError, tf.errors.OpError)
AT_ONCE = min(4, os.cpu_count() or 1)
"""So many threads read or write the files of a checkpoint."""
_PART = 2**28  # bytes, about, of a file


def write_bundle(prefix: Path, tensors: Mapping[str, tf.Tensor], *, gives_way: bool = False) -> None:
    """Write tensors by name: small ones in one file, large ones in several that are written at once.

    TensorFlow writes a file with one thread, half as fast as a disk.

    Args:
        prefix: of the files' names.
        tensors: to write.
        gives_way: whether to write several files with what others leave of the processors.

    Raises:
        OSError, tf.errors.OpError: a file cannot be written.
    """
    parts = _parts(tensors)
    prefixes = [f"{prefix}-{number}" for number in range(len(parts))]
    # One file is soon written, by a thread that needs Python's lock for much of that: others would wait for one with a
    # low priority to give it back.
    with ThreadPoolExecutor(AT_ONCE, initializer=give_way if gives_way and len(parts) > 1 else None) as writing:
        list(writing.map(_write, prefixes, parts))
    with tf.device("CPU:0"):
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes, destination_prefix=str(prefix), delete_old_dirs=False
        )


def _parts(tensors: Mapping[str, tf.Tensor]) -> list[dict[str, tf.Tensor]]:
    """What goes into each of the files; the same for the same tensors."""
    parts: list[dict[str, tf.Tensor]] = []
    size = _PART
    for name, tensor in tensors.items():
        if size >= _PART:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.shape.num_elements() * tensor.dtype.size
    return parts


def _write(prefix: str, tensors: Mapping[str, tf.Tensor]) -> None:
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )


def read_tensors(prefix: Path | str) -> dict[str, tf.Tensor]:
    """Read all tensors of a bundle by name, large ones by several threads.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    try:
        with literal_prefix(prefix) as path, tf.device("CPU:0"):
            dtypes = tf.train.load_checkpoint(path).get_variable_to_dtype_map()
            # Variants and resources are not values; decoding them is left alone.
            names = [name for name, dtype in dtypes.items() if dtype not in (tf.variant, tf.resource)]
            tensors = tf.raw_ops.RestoreV2(
                prefix=path,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                dtypes=[dtypes[name] for name in names],
            )
    except READ_ERRORS as error:
        raise CheckpointError(f"cannot read the checkpoint {prefix}: {first_line(error)}") from error
    return dict(zip(names, tensors, strict=True))


def read_bundle(prefix: Path | str) -> dict[str, np.ndarray[Any, Any]]:
    """Read all tensors of a bundle by name, as arrays; see `read_tensors`."""
    return {name: tensor.numpy() for name, tensor in read_tensors(prefix).items()}
