"""The position in a dataset as TensorFlow saves it, and whether it may be saved so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from prototrain.checkpoint import holds_graph
from prototrain.tracebacks import cause

_NOT_SAVABLE = (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)
_DATA = "data-00000-of-00001"
_KEY = "iterator/.ATTRIBUTES/ITERATOR_STATE"  # as tf.train.Checkpoint(iterator=...) names it


class Place(NamedTuple):
    """Where in the data a checkpoint lies.

    Attributes:
        offset: batches of the present pass that were trained on before it.
        behind: how many of them are read again behind the saved state.
    """

    offset: int = 0
    behind: int = 0

    @property
    def position(self) -> int:
        """How many batches were read before the saved state."""
        return self.offset - self.behind


def take_state(iterator: Any) -> tf.Tensor:
    """An iterator's state, which does not move on with it; a vector of variants."""
    return iterator._serialize_to_tensors()["_STATE"]


def write_state(prefix: str, state: tf.Tensor) -> None:
    """Write what `take_state` returned; from any thread."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], tensors=[state])


class StateFiles:
    """The files of a state that was written earlier, held open: they can be copied even if they are deleted meanwhile.

    Args:
        prefix: as it was given to `write_state`.

    Raises:
        FileNotFoundError: they are not there.
    """

    def __init__(self, prefix: str) -> None:
        paths = {f".{suffix}": Path(f"{prefix}.{suffix}") for suffix in ("index", _DATA)}
        self._files = {suffix: path.open("rb") for suffix, path in paths.items()}  # closed by `copy`, or with this

    def copy(self, prefix: str) -> None:
        """Write the state once more, as `write_state` does; once, and from any thread."""
        for suffix, file in self._files.items():
            with file, open(prefix + suffix, "wb") as copy:
                shutil.copyfileobj(file, copy)


def read_state(prefix: str, iterator: Any) -> None:
    """Bring an iterator of the same dataset to the state that was written.

    Raises:
        tf.errors.OpError: there is none, or it is not of such an iterator.
    """
    with tf.device("CPU:0"):
        (state,) = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], dtypes=[tf.variant])
    iterator._restore_from_tensors({"_STATE": state})


def why_not_saved(iterator: Any, caches: list[str], memory: str) -> str | None:
    """Why a checkpoint cannot hold an iterator's state, or None if it can.

    Args:
        iterator: has begun.
        caches: what `file_caches` finds in its dataset.
        memory: where to save it for a trial.
    """
    if caches:
        # Restored without that file, the iterator would end the whole process.
        return f"it is cached in the file {caches[0]}, which a saved position would need"
    try:
        write_state(f"{memory}/trial", take_state(iterator))
    except _NOT_SAVABLE as error:
        return f"its iterator cannot be saved: {cause(error)}"
    with tf.io.gfile.GFile(f"{memory}/trial.{_DATA}", "rb") as file:
        holds_datasets = holds_graph(file.read())
    return "its iterator holds datasets, whose graphs a restore would have to run" if holds_datasets else None
