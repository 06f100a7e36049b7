"""The position in a dataset as TensorFlow saves it, and whether it may be saved so."""

from __future__ import annotations

import io
import re
import shutil
import weakref
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Any, NamedTuple

import tensorflow as tf

from prototrain.checkpoint import holds_graph
from prototrain.system.tracebacks import cause

_NOT_SAVABLE = (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)
_DATA = "data-00000-of-00001"
_GENERATOR = b"@@epoch_num_random_samples"  # what TensorFlow calls a part of a shuffle's state
_NAME = re.compile(rb"Iterator::[\w:\[\]]+")
_COUNTED = re.compile(rb"(?<!Concatenate)(?<!Zip)\[\d+\]")  # the number of a pass or an element
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


class Saved(NamedTuple):
    """A written state.

    Attributes:
        prefix: where its files start.
        place: of the checkpoint that they are a part of.
        taken_at: when it was taken, in seconds on the clock of this process.
        took: for how many seconds.
        is_whole: whether the passes behind the present one will have the order that they had.
    """

    prefix: str
    place: Place
    taken_at: float
    took: float = 0.0
    is_whole: bool = True


def take_state(iterator: Any) -> tf.Tensor:
    """An iterator's state, which does not move on with it; a vector of variants."""
    return iterator._serialize_to_tensors()["_STATE"]


def start_state(iterator: Any) -> tf.Tensor | None:
    """The state of an iterator that nothing was read from yet, or None if it cannot be saved."""
    try:
        return take_state(iterator)
    except _NOT_SAVABLE:
        return None


def write_state(prefix: str, state: tf.Tensor) -> None:
    """Write what `take_state` returned; from any thread."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[_KEY], shape_and_slices=[""], tensors=[state])


class StateFiles:
    """The files of a state that was written earlier, held open: they can be copied even if they are deleted meanwhile.

    Args:
        prefix: as it was given to `write_state`; on disk, or in memory (``ram://``).

    Raises:
        OSError, tf.errors.NotFoundError: they are not there.
    """

    def __init__(self, prefix: str) -> None:
        self._files = {suffix: _open(f"{prefix}.{suffix}") for suffix in ("index", _DATA)}
        weakref.finalize(self, _close, list(self._files.values()))

    def copy(self, prefix: str) -> None:
        """Write the state once more, as `write_state` does; once, and from any thread."""
        for suffix, file in self._files.items():
            with open(f"{prefix}.{suffix}", "wb") as copy:
                shutil.copyfileobj(file, copy)


def shuffles(prefix: str) -> set[bytes]:
    """Name the shuffles whose random generators a written state holds, by their places in the pipeline.

    TensorFlow drops what is behind some stages when it ends, such as behind a `batch` whose last batch is a partial
    one. A state that is taken before the next pass has begun lacks the shuffle behind it, and would begin that pass in
    the order of the first one.
    """
    with _open(f"{prefix}.{_DATA}") as file:
        content: Any = file.read() if isinstance(file, io.BytesIO) else mmap(file.fileno(), 0, access=ACCESS_READ)
        found = set()
        at = content.find(_GENERATOR)
        while at >= 0:
            name = bytes(content[content.rfind(b"Iterator::", 0, at) : at])
            if _NAME.fullmatch(name):  # and not an example that has these words
                found.add(_COUNTED.sub(b"[]", name))
            at = content.find(_GENERATOR, at + 1)
        return found


def _open(path: str) -> IO[bytes]:
    if not path.startswith("ram://"):
        return Path(path).open("rb")
    with tf.io.gfile.GFile(path, "rb") as file:
        return io.BytesIO(file.read())


def _close(files: list[IO[bytes]]) -> None:
    for file in files:
        file.close()


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
